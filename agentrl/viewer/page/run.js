// The page of a run: its figures, curves that grow while it goes on, other runs over it, and the audit's verdict.

import { html, useMemo, useState } from "./vendor/htm-preact.js";
import { duration, figure, get, percent, useApi, useRows } from "./api.js";
import { Chart } from "./chart.js";
import { Failure, Fields, go } from "./parts.js";

const COLORS = ["c0", "c1", "c2", "c3", "c4", "c5"];
const DASHES = [undefined, [6, 3], [2, 3]];

/** The curves over steps: title, unit, the lines [metric, label], and what the API calls its bound. */
const CURVES = [
  { title: "Loss of a supervised run", unit: "nats a token", lines: [["nll", "negative log-likelihood"]] },
  { title: "Reward of a step", unit: "reward", lines: [["reward_mean", "groups counted"], ["batch_reward_mean", "trained on"]] },
  { title: "Staleness of trained tokens", unit: "versions", lines: [["staleness_max", "oldest"], ["staleness_mean", "mean"]], bound: "staleness_bound" },
  { title: "Engine–trainer mismatch", unit: "nats a token", lines: [["logprob_mismatch_mean_abs", "mean difference"]] },
  { title: "Entropy of the policy", unit: "nats a token", lines: [["entropy", "mean"]] },
  { title: "Importance weight", unit: "p/b", lines: [["importance_weight_p99", "99th percentile"], ["importance_weight_p50", "median"], ["importance_weight_p01", "1st percentile"]] },
  { title: "Generated tokens", unit: "tokens/s", lines: [["tokens_per_s", "rate"]] },
  { title: "Time of a step", unit: "s", lines: [["step_s", "whole step"], ["wait_s", "waited for the batch"], ["train_s", "trainer"]] },
  { title: "Pause of generation for new weights", unit: "s", lines: [["pause_s", "pause"]] },
  { title: "Gradient before clipping", unit: "norm", lines: [["grad_norm", "mean"]] },
];

/** Return the rows with what follows from two of them: tokens/s. */
function derived(rows) {
  return rows.map((row, i) => {
    const last = i ? rows[i - 1] : { tokens: 0, wall_s: 0 };
    const passed = row.wall_s - last.wall_s;
    return { ...row, tokens_per_s: passed > 0 && row.tokens >= last.tokens ? (row.tokens - last.tokens) / passed : null };
  });
}

/** Return what belongs on the axis of a run: alarms that began, checkpoints, restarts. */
export function marksOf(run, rows) {
  const began = (row, i) => Object.keys(row).filter((name) => name.startsWith("alarm_") && row[name] > (rows[i - 1]?.[name] ?? 0));
  const alarms = rows.flatMap((row, i) =>
    began(row, i).map((name) => ({ x: row.step, kind: "alarm", text: `alarm: ${row.alarms?.[name.slice(6)] ?? name.slice(6).replaceAll("_", " ")}` })),
  );
  const checkpoints = (run?.checkpoints ?? []).map(({ step, best }) => ({ x: step, kind: "checkpoint", text: best ? "best checkpoint" : "checkpoint" }));
  const restarts = (run?.restarts ?? []).slice(1).map(({ step }) => ({ x: step, kind: "restart", text: "restart" }));
  return [...checkpoints, ...restarts, ...alarms].sort((a, b) => a.x - b.x);
}

/** Carry a value from one rising list to another, along straight lines between their points. */
function carried(value, from, to) {
  const i = Math.min(Math.max(1, from.findIndex((x) => x >= value)), from.length - 1);
  if (from.at(-1) < value || from.length < 2) return to.at(-1);
  return to[i - 1] + ((value - from[i - 1]) / (from[i] - from[i - 1] || 1)) * (to[i] - to[i - 1]);
}

function RewardByGroup({ shown, rows, zoom, onZoom }) {
  const groups = Math.max(...shown.map((run) => rows[run.run]?.at(-1)?.groups_counted ?? 0));
  const size = Math.max(1, Math.ceil(groups / 100)); // one for all: percentiles of more groups lie closer together
  const answers = shown.map((run) => useApi(`runs/${run.run}/rewards`, { size }, run.status === "running" ? 10 : 0).data);
  const steps = rows[shown[0].run] ?? [];
  const [ofSteps, ofGroups] = [[0, ...steps.map((row) => row.step)], [0, ...steps.map((row) => row.groups_counted ?? 0)]];
  const of = (run, i) => {
    const { first_group: xs = [], mean, low, high } = answers[i] ?? {};
    const line = (label, ys = [], rest) => ({ xs, ys, label, color: COLORS[i % 6], ...rest });
    const edges = [line("high", high, { hidden: true, band: true }), line("low", low, { hidden: true })];
    return [line("mean", mean, { width: 2 }), ...(shown.length === 1 ? edges : [])];
  };
  const lines = useMemo(() => shown.flatMap(of), answers);
  const toGroups = zoom && steps.length > 1 ? zoom.map((x) => carried(x, ofSteps, ofGroups)) : null;
  return html`<${Chart} title="Reward by group, in the order the groups began" unit="reward" metric="mean reward of the groups of a point; the band is from their 10th to their 90th percentile"
    xName="group" tall lines=${lines} zoom=${toGroups} onZoom=${(range) => onZoom(range && range.map((x) => carried(x, ofGroups, ofSteps)))} />`;
}

function HeldOut({ shown, infos, shared }) {
  const lines = shown.flatMap((run, i) => {
    const points = infos[i]?.evaluations ?? [];
    return points.length ? [{ xs: points.map((one) => one.step), ys: points.map((one) => one.mean_reward), label: "mean", color: COLORS[i % 6], dots: true }] : [];
  });
  return lines.length > 0 && html`<${Chart} title="Reward on held-out tasks" unit="reward" metric="eval_mean_reward" lines=${lines} ...${shared} />`;
}

/** Return the values of a nested table by their dotted keys. */
function flat(value, prefix = "") {
  if (value == null || typeof value !== "object" || Array.isArray(value)) return { [prefix]: value };
  return Object.assign({}, ...Object.entries(value).map(([key, inner]) => flat(inner, prefix ? `${prefix}.${key}` : key)));
}

function Configurations({ shown, infos }) {
  const all = infos.map((info) => flat(info?.config ?? {}));
  const text = (value) => (typeof value === "string" ? value : JSON.stringify(value ?? null));
  const keys = [...new Set(all.flatMap(Object.keys))].filter((key) => all.length < 2 || new Set(all.map((one) => text(one[key]))).size > 1);
  const table = html`<div class="scroll" tabindex="0"><table>
    <thead><tr><th>key</th>${shown.map((run) => html`<th>${run.name}</th>`)}</tr></thead>
    <tbody>${keys.map((key) => html`<tr><th scope="row" class="mono">${key}</th>${all.map((one) => html`<td class="mono">${text(one[key])}</td>`)}</tr>`)}</tbody>
  </table></div>`;
  if (all.length < 2) return html`<details class="card"><summary>Configuration</summary>${table}</details>`;
  return html`<section class="card"><h2>Differences of the configurations</h2>${keys.length ? table : html`<p class="empty">None: the runs differ in nothing that is configured.</p>`}</section>`;
}

function Audit({ run }) {
  const [state, setState] = useState(null);
  const start = async () => {
    setState("asking");
    setState(await get(`runs/${run.run}/audit`).catch((error) => ({ error })));
  };
  const { violations, error, ...counted } = state ?? {};
  return html`<section class="card audit">
    <h2>Audit</h2>
    <p>Everything that the run wrote, checked against what it promises: each token trained once, each group accounted for.</p>
    <button onClick=${start} disabled=${state === "asking"}>${state === "asking" ? "Auditing…" : "Audit this run"}</button>
    <${Failure} error=${error} />
    ${violations && html`<p class=${violations.length ? "bad" : "good"} role="status">${violations.length ? `${violations.length} violation${violations.length > 1 ? "s" : ""}` : "Nothing is amiss."}</p>`}
    ${violations?.length > 0 && html`<ul>${violations.map((one) => html`<li>${one}</li>`)}</ul>`}
    ${violations && html`<details open><summary>What it counted</summary><${Fields} value=${counted} /></details>`}
  </section>`;
}

function Tiles({ run, rows, summary }) {
  const last = rows.at(-1) ?? {};
  const attempts = rows.length ? Object.keys(last).filter((name) => name.startsWith("reason_")).reduce((sum, name) => sum + last[name], 0) : null;
  const ofEvaluation = ["mean_reward", "tasks", "episodes", "failed"].map((name) => [name.replace("_", " "), figure(summary?.[name]), name]);
  const tiles = run.kind !== "run" ? [...ofEvaluation, ["time", duration(summary?.duration_s), "duration_s"]] : [
    ["step", run.steps ? `${run.step} of ${run.steps}` : figure(run.step), "step"],
    ["reward", figure(last.reward_mean), "reward_mean"],
    ["episodes", figure(last.episodes_finished), "episodes_finished"],
    ["failed attempts", figure(attempts), "the sum of reason_…"],
    ["failed for good", figure(last.episodes_failed), "episodes_failed: in every attempt"],
    ["groups dropped", figure(last.groups_rejected), "groups_rejected"],
    ["tokens/s", figure(last.tokens_per_s), "tokens / wall_s"],
    ["trainer waited", percent(rows.reduce((sum, row) => sum + (row.wait_s ?? 0), 0) / rows.reduce((sum, row) => sum + (row.step_s ?? 0), 0)), "wait_s / step_s"],
    ["time", duration(last.wall_s), "wall_s"],
  ];
  return html`<dl class="tiles">${tiles.map(([name, value, metric]) => html`<div title=${metric}><dt>${name}</dt><dd>${value}</dd></div>`)}</dl>`;
}

/** Show a run, and those of `query.with` over it. */
export function RunPage({ run, runs, query }) {
  const [zoom, setZoom] = useState(null);
  const [more, setMore] = useState([]);
  const others = (query.with ?? "").split(",").filter(Boolean).map(Number);
  const shown = [run, ...runs.filter((one) => others.includes(one.run) && one.run !== run.run)];
  const answers = runs.map((one) => useApi(shown.includes(one) ? `runs/${one.run}` : null, {}, one.status === "running" ? 5 : 0));
  const shownInfos = shown.map((one) => answers[runs.indexOf(one)].data);
  const raw = useRows(shown);
  const rows = useMemo(() => Object.fromEntries(Object.entries(raw).map(([number, of]) => [number, derived(of)])), [raw]);
  const own = rows[run.run] ?? [];
  const marks = useMemo(() => marksOf(shownInfos[0], own), [shownInfos[0], own]);
  const names = useMemo(() => [...new Set(own.flatMap(Object.keys))].filter((name) => name !== "step" && name !== "alarms").sort(), [own]);
  const toggle = (number) => go(["run", run.run], { with: (others.includes(number) ? others.filter((one) => one !== number) : [...others, number]).join() });
  const measured = useMemo(() => new Set(shown.flatMap((one) => (rows[one.run] ?? []).flatMap((row) => Object.keys(row).filter((name) => row[name] != null)))), [rows]);
  const known = ({ lines }) => (measured.size ? lines.some(([name]) => measured.has(name)) : lines[0][0] !== "nll");
  const curves = [...CURVES.filter(known), ...more.map((name) => ({ title: name, unit: "", lines: [[name, "value"]] }))];
  const line = (one, i, metric, label, j) => {
    const of = (rows[one.run] ?? []).filter((row) => row[metric] != null);
    return { xs: of.map((row) => row.step), ys: of.map((row) => row[metric]), label, color: COLORS[i % 6], dash: DASHES[j] };
  };
  const linesOf = (curve) => shown.flatMap((one, i) => curve.lines.map(([metric, label], j) => line(one, i, metric, label, j)));
  const drawn = useMemo(() => curves.map(linesOf), [rows, more, shown.map((one) => one.run).join()]);
  const shared = { zoom, onZoom: setZoom, sync: "steps" };
  const swatch = (one) => shown.includes(one) && shown.length > 1 && html`<i class="swatch" style=${{ "--key": `var(--${COLORS[shown.indexOf(one) % 6]})` }}></i>`;
  const begun = run.status !== "running" || own.length > 0;
  return html`
    ${begun && answers.map((one) => html`<${Failure} error=${one.error} />`)}
    ${run.kind !== "service" && html`<${Tiles} run=${run} rows=${own} summary=${shownInfos[0]?.summary} />`}
    ${runs.length > 1 && html`<fieldset class="overlay"><legend>Compare</legend><span>${swatch(run)}${run.name}</span>
      ${runs.filter((one) => one !== run).map((one) => html`<label><input type="checkbox" checked=${others.includes(one.run)} onChange=${() => toggle(one.run)} />${swatch(one)}${one.name}</label>`)}
    </fieldset>`}
    ${zoom && html`<p class="zoomed">Steps ${Math.ceil(zoom[0])} to ${Math.floor(zoom[1])} <button onClick=${() => setZoom(null)}>Show all</button></p>`}
    <section class="charts">
      ${run.kind !== "evaluation" && !measured.has("nll") && html`<${RewardByGroup} key=${shown.map((one) => one.run).join()} shown=${shown} rows=${rows} zoom=${zoom} onZoom=${setZoom} />`}
      ${run.kind === "run" && curves.map((curve, i) => html`<${Chart} key=${curve.title} title=${curve.title} unit=${curve.unit} metric=${curve.lines.map(([name]) => name).join(", ")}
          lines=${drawn[i]} marks=${marks} bound=${shownInfos[0]?.[curve.bound]} ...${shared} />`)}
      <${HeldOut} shown=${shown} infos=${shownInfos} shared=${shared} />
    </section>
    ${names.length > 0 && html`<p class="more">
      <label>Another metric${" "}
        <select value="" onChange=${(event) => event.target.value && setMore([...more, event.target.value])}>
          <option value="">choose…</option>${names.filter((name) => !more.includes(name)).map((name) => html`<option>${name}</option>`)}
        </select>
      </label>${" "}
      <span class="note">Drag over a chart to zoom into all of them; a double click shows all again.</span>
    </p>`}
    ${marks.length > 0 && html`<details class="card">
      <summary>Alarms, restarts, checkpoints (${marks.length})</summary>
      <ul>${marks.map((mark) => html`<li class=${mark.kind === "alarm" ? "bad" : ""}>step ${mark.x}: ${mark.text}</li>`)}</ul>
    </details>`}
    <${Configurations} shown=${shown} infos=${shownInfos} />
    ${shownInfos[0]?.summary && html`<details class="card" open=${run.kind !== "run"}><summary>Summary</summary><${Fields} value=${shownInfos[0].summary} /></details>`}
    ${run.kind === "run" && html`<${Audit} key=${run.run} run=${run} />`}
  `;
}
