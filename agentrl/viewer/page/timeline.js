// The timeline of a run: who waited for whom.
//
//   metrics.jsonl: wall_s, step_s, wait_s, train_s, pause_s ─► bars of the trainer and of the servers
//   episodes: started_at, duration_s ─► how many ran at each moment

import { html, useMemo, useState } from "./vendor/htm-preact.js";
import { duration, figure, get, percent, useApi, usePolled, useRows } from "./api.js";
import { Chart, color } from "./chart.js";
import { Awaited } from "./parts.js";
import { marksOf } from "./run.js";

const PAGES = 4;
const NONE = { list: [], more: false };
const SERVER = /^server_\d+_tokens$/;

/**
 * Return the lanes, [name, bars], of bars [from, to, kind, height] in s of the run. A step waits for its batch, trains, and hands over its
 * weights, for which servers pause. Of several servers each has a lane, in which a bar is as high as it generated fast.
 */
function lanesOf(rows) {
  const servers = [...new Set(rows.flatMap(Object.keys))].filter((name) => SERVER.test(name));
  const names = servers.length > 1 ? servers : ["servers"];
  const rate = (row, name) => (row[name] ?? 0) / (row.step_s - (row.pause_s ?? 0) || 1);
  const most = rows.reduce((top, row) => Math.max(top, ...names.map((name) => rate(row, name))), 0) || 1;
  const [trainer, bars] = [[], names.map(() => [])];
  for (const row of rows) {
    const { wall_s: end, step_s, wait_s = 0, train_s = 0, pause_s = 0 } = row;
    const [start, trains, paused] = [end - step_s, end - train_s - pause_s, end - pause_s];
    trainer.push([start, Math.min(start + wait_s, trains), "wait", 1], [trains, paused, "train", 1], [paused, end, "pause", 1]);
    names.forEach((name, i) => bars[i].push([start, paused, "generate", servers.length > 1 ? rate(row, name) / most : 1], [paused, end, "pause", 1]));
  }
  return [["trainer", trainer], ...names.map((name, i) => [name.replace("_tokens", "").replace("_", " "), bars[i]])];
}

const LANES = { wait: "c1", train: "c0", pause: "bad", generate: "c2" };
const KEYS = [["waits for a batch", "c1"], ["trains", "c0"], ["generates", "c2"], ["takes new weights", "bad"]];

function drawLanes(u, lanes) {
  const { top, height } = u.bbox;
  const lane = height / lanes.length;
  const within = (x) => Math.max(u.bbox.left, Math.min(u.bbox.left + u.bbox.width, u.valToPos(x, "x", true)));
  lanes.forEach(([, bars], i) => {
    for (const [from, to, kind, high] of bars.filter((bar) => bar[1] >= u.scales.x.min && bar[0] <= u.scales.x.max)) {
      u.ctx.fillStyle = color(LANES[kind]);
      u.ctx.fillRect(within(from), top + lane * (i + 0.84 - 0.68 * high), Math.max(1, within(to) - within(from)), lane * 0.68 * high);
    }
  });
}

/** Return how many episodes ran at each moment, as a line of steps; `clock` turns a moment into s of the run. */
function running(episodes, clock) {
  const changes = episodes.flatMap((one) => [[clock(one.started_at), 1], [clock(one.started_at + one.duration_s), -1]]).sort((a, b) => a[0] - b[0]);
  let count = 0;
  return { xs: changes.map(([x]) => x), ys: changes.map(([, change]) => (count += change)) };
}

/** Return the s of the run at which a start began: its checkpoints know the moment and the step, and are made after that, some at once. */
function beginOf(start, rows) {
  const known = rows.filter((row) => row.step in (start.made_at ?? {})).map((row) => row.wall_s - (start.made_at[row.step] - start.started_at));
  return known.length ? Math.max(0, ...known) : rows.findLast((row) => row.step <= start.step)?.wall_s ?? 0;
}

/** Return the clock of a run: the wall clock's moment ─► s of the run, over restarts. */
function clockOf(restarts, rows, episodes) {
  const first = Math.min(...episodes.map((one) => one.started_at));
  const begins = (restarts ?? []).map((one) => [one.started_at, beginOf(one, rows)]);
  return (at) => {
    const [began, offset] = begins.findLast(([begin]) => begin <= at) ?? [first, 0];
    return at - began + offset;
  };
}

/** Return the newest episodes of a run, read again with each step, and whether there are earlier ones. */
function useEpisodes(run, parts) {
  const ask = async () => {
    let [list, cursor] = [[], null];
    for (let i = 0; i < PAGES * parts && (cursor || !i); i += 1) {
      const page = await get(`runs/${run.run}/episodes`, { limit: 500, cursor });
      [list, cursor] = [[...list, ...page.episodes], page.cursor];
    }
    return { list, more: !!cursor };
  };
  return usePolled(String(run.run), ask, 0, [run.step, run.status, parts].join()).data ?? NONE;
}

/** Say S, S_max and ε, each in one phrase. */
function Gain({ run }) {
  const { gain, bound, efficiency, steps } = useApi(`runs/${run.run}/speedup`, {}, run.status === "running" ? 10 : 0).data ?? {};
  if (gain == null) return null;
  const figures = [
    ["S", gain, "times as fast as the same steps one after the other: all episodes of a batch, then training, then new weights"],
    ["S_max", bound, "the most that this run could gain, if only the slower of episodes and trainer took time"],
    ["ε", efficiency, "S over the most: the share that it reached"],
  ];
  return html`<section class="card gain"><h2>Gain of asynchrony</h2>
    <table class="fields"><tbody>${figures.map(([name, value, words]) => html`<tr><th scope="row">${name}</th><td class="figure">${figure(value)}</td><td>${words}</td></tr>`)}</tbody></table>
    <p class="note">Estimated from the trace: the durations of the episodes of ${steps === 1 ? "the one step" : `the newest ${steps} steps`} that checkpoints contain, put on the run's slots batch by batch. Where episodes that ran at once slowed each other, it is too high.</p>
  </section>`;
}

/** Show the lanes, the share of each wait, and how old the data was. */
export function TimelinePage({ run }) {
  const [zoom, setZoom] = useState(null);
  const [parts, setParts] = useState(1);
  const info = useApi(`runs/${run.run}`, {}, run.status === "running" ? 5 : 0).data;
  const found = useRows([run])[run.run];
  const rows = found ?? [];
  const episodes = useEpisodes(run, parts);
  const xs = rows.map((row) => row.wall_s);
  const ends = useMemo(() => (rows.length ? [rows[0].wall_s - rows[0].step_s, rows.at(-1).wall_s] : []), [rows]);
  const lanes = useMemo(() => lanesOf(rows), [rows]);
  const draw = useMemo(() => (u) => drawLanes(u, lanes), [lanes]);
  const shape = useMemo(() => [{ xs: [...ends.slice(0, 1), ...xs], ys: [], label: "", color: "c0", hidden: true }], [rows]);
  const ran = useMemo(() => [{ ...running(episodes.list, clockOf(info?.restarts, rows, episodes.list)), label: "episodes", color: "c2", steps: true, fill: true }], [episodes, info, rows]);
  const line = (name, label, dash) => ({ xs, ys: rows.map((row) => row[name]), label, color: "c0", dash });
  const stale = useMemo(() => [line("staleness_max", "oldest token"), line("staleness_mean", "mean", [6, 3])], [rows]);
  const marks = useMemo(() => {
    const at = new Map(rows.map((row) => [row.step, row.wall_s]));
    return marksOf(info, rows).flatMap((mark) => (at.has(mark.x) ? [{ ...mark, x: at.get(mark.x) }] : []));
  }, [info, rows]);
  const sum = (name) => rows.reduce((total, row) => total + (row[name] ?? 0), 0);
  const [whole, waited, trained, paused] = ["step_s", "wait_s", "train_s", "pause_s"].map(sum);
  const shares = [
    ["Trainer waited for a batch", waited, "c1", "wait_s"],
    ["Trainer trained", trained, "c0", "train_s"],
    ["Servers paused for new weights", paused, "bad", "pause_s"],
    ["All else: batches put together, checkpoints, evaluation", Math.max(0, whole - waited - trained - paused), "dim", "step_s − wait_s − train_s − pause_s"],
  ];
  const shared = { zoom: zoom ?? ends, onZoom: setZoom, sync: "time", xName: "second" };
  if (!found) return html`<${Awaited} />`;
  if (!rows.length) return html`<p class="empty card">No step has ended yet.</p>`;
  return html`
    <section class="card">
      <h2>Who waited for whom</h2>
      <table class="shares"><tbody>${shares.map(([name, seconds, key, metric]) => html`<tr title=${metric} style=${{ "--share": seconds / whole, "--key": `var(--${key})` }}>
        <th scope="row"><i class="swatch"></i>${name}</th><td class="figure">${duration(seconds)}</td><td class="figure">${percent(seconds / whole)}</td>
        <td class="wide"><i class="share"></i></td></tr>`)}</tbody></table>
    </section>
    <${Gain} run=${run} />
    ${zoom && html`<p class="zoomed">Seconds ${figure(zoom[0])} to ${figure(zoom[1])} of the run <button onClick=${() => setZoom(null)}>Show all</button></p>`}
    <section class="lanes">
      <${Chart} title="Trainer and servers" unit="s of the run" metric="wall_s, step_s, wait_s, train_s, pause_s"
        lines=${shape} lanes=${lanes.map(([name]) => name)} keys=${KEYS} draw=${draw} marks=${marks} ...${shared} />
      <${Chart} title="Episodes that ran" unit=${run.status === "running" ? "episodes that have ended: the newest that run are not drawn yet" : "episodes"} metric="started_at, duration_s of each episode" lines=${ran} ...${shared} />
      ${episodes.more && html`<p><button onClick=${() => setParts(parts * 4)}>Read earlier episodes</button> <span class="note">The newest ${figure(episodes.list.length)} are drawn.</span></p>`}
      <${Chart} title="Staleness of what was trained on" unit="versions" metric="staleness_max, staleness_mean"
        lines=${stale} bound=${info?.staleness_bound} ...${shared} />
    </section>
  `;
}
