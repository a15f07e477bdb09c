// The episodes of a run: a table with filters, what is exported of it, and a group with its episodes side by side.

import { html, useEffect, useState } from "./vendor/htm-preact.js";
import { address, duration, figure, get, given, moment, useApi } from "./api.js";
import { Awaited, Ending, Failure, Reward, Text, go, link } from "./parts.js";

const ANY = ["", "any"];
const FORMATS = [["jsonl", "JSON lines"], ["html", "HTML"], ["sft", "sft"]];

/** Offer a set of episodes as files. */
export function Exports({ run, label, filters, limit = 1 }) {
  const file = (format) => address(`runs/${run.run}/export`, { ...filters, format, limit });
  return html`<span class="exports">${label}${" "}
    ${FORMATS.map(([format, name]) => html`<a class="button" download href=${file(format)}>${name}</a>`)}
  </span>`;
}

function Filters({ run, info, query, change }) {
  const field = (name, label, rest) => html`<label>${label}<input name=${name} value=${query[name] ?? ""} ...${rest} /></label>`;
  const choice = (name, label, options) => html`<label>${label}<select name=${name} value=${query[name] ?? ""}>
    ${options.map(([value, text]) => html`<option value=${value} selected=${(query[name] ?? "") === value}>${text}</option>`)}
  </select></label>`;
  const number = { type: "number", step: "any", inputmode: "decimal" };
  const read = (event) => (event.preventDefault(), change(Object.fromEntries(new FormData(event.currentTarget))));
  return html`<form class="filters card" onSubmit=${read} onChange=${read}>
    ${field("task", "Task", { type: "number", min: 0 })}${field("step", "Step", { type: "number", min: 0 })}${field("group", "Group", { type: "number", min: 0 })}${run.kind === "service" && field("session", "Session", { type: "search", placeholder: "ses_…" })}
    ${field("min_reward", "Reward from", number)}${field("max_reward", "to", number)}
    ${choice("reason", "Ended", [ANY, ["failed", "failed, any reason"], ...(info?.reasons ?? []).map((one) => [one, one.replaceAll("_", " ")])])}
    ${info?.roles.length > 0 && choice("role", "Role", [ANY, ...info.roles.map((one) => [one, one])])}
    ${field("min_staleness", "Staleness from", { type: "number", min: 0 })}
    ${choice("cut", "New weights", [ANY, ["true", "within a reply"]])}${choice("best_of_group", "Of a group", [["", "all"], ["true", "the best"]])}${field("text", "Text", { type: "search", placeholder: "in the conversation" })}
    ${choice("sort", "Order", [["", "newest"], ["oldest", "oldest"], ["best", "best reward"], ["worst", "worst reward"]])}
  </form>`;
}

function Rows({ run, episodes, query }) {
  const rewards = episodes.map((one) => one.reward);
  const [low, high] = [Math.min(0, ...rewards), Math.max(1, ...rewards)];
  const open = (event, one) => event.target.closest("a") || go(["episode", run.run, one.id], query);
  return html`<div class="scroll card" tabindex="0"><table class="list">
    <thead><tr>
      ${["Episode", "Task", "Reward", "Ended", "Group", "Step"].map((name) => html`<th title=${name === "Step" ? "that trained on it, known from the next checkpoint on" : ""}>${name}</th>`)}
      ${["Staleness", "Tokens", "Took", "Began"].map((name) => html`<th class="minor">${name}</th>`)}
    </tr></thead>
    <tbody>${episodes.map(
      (one) => html`<tr key=${one.id} onClick=${(event) => open(event, one)}>
        <td><a class="figure" href=${link(["episode", run.run, one.id], query)}>${one.id}</a></td>
        <td class="task">${one.task}</td>
        <td><${Reward} value=${one.reward} low=${low} high=${high} /></td>
        <td title=${one.error ?? ""}><${Ending} reason=${one.reason} /></td>
        <td><a class="figure" href=${link(["group", run.run, one.group])}>${one.group}</a></td>
        <td class="figure">${one.step ?? "–"}</td>
        <td class="figure minor">${one.staleness ?? "–"}</td><td class="figure minor">${figure(one.tokens, 5)}</td>
        <td class="figure minor">${duration(one.duration_s)}</td><td class="minor">${moment(one.started_at)}</td>
      </tr>`,
    )}</tbody>
  </table></div>`;
}

/** Go to the group of a step whose mean reward is lowest. */
async function goToWorst(run, step) {
  const { episodes } = await get(`runs/${run.run}/episodes`, { step, reason: "finished", limit: 10000 });
  const groups = new Map();
  for (const one of episodes) groups.set(one.group, [...(groups.get(one.group) ?? []), one.reward]);
  const mean = (list) => list.reduce((sum, reward) => sum + reward, 0) / list.length;
  if (!groups.size) throw new Error("Which groups a step trained on is known from the next checkpoint on.");
  go(["group", run.run, [...groups].sort((a, b) => mean(a[1]) - mean(b[1]))[0][0]]);
}

/** Show the episodes that the filters of `query` leave, a page at a time. */
export function EpisodesPage({ run, query }) {
  const [extra, setExtra] = useState({ list: [], cursor: undefined });
  const [failed, setFailed] = useState(null);
  const info = useApi(`runs/${run.run}`, {}, run.status === "running" ? 5 : 0).data;
  const searching = query.text || query.role || query.cut;
  const live = run.status === "running" && !searching && !extra.list.length;
  const first = useApi(`runs/${run.run}/episodes`, { ...query, limit: 50 }, live ? 5 : 0);
  const asked = JSON.stringify([run.run, query]);
  useEffect(() => setExtra({ list: [], cursor: undefined }), [asked]);
  const cursor = extra.cursor === undefined ? first.data?.cursor : extra.cursor;
  const searched = extra.searched ?? first.data?.searched_to;
  const attempt = (action) => action().then(() => setFailed(null), setFailed);
  const further = () =>
    attempt(async () => {
      const page = await get(`runs/${run.run}/episodes`, { ...query, limit: 50, cursor });
      setExtra({ list: [...extra.list, ...page.episodes], cursor: page.cursor, searched: page.searched_to });
    });
  const stored = Math.max(0, ...(info?.checkpoints ?? []).map((one) => one.step)); // a checkpoint says which groups each step trained on
  const worst = () => attempt(() => goToWorst(run, stored));
  const episodes = [...(first.data?.episodes ?? []), ...extra.list];
  return html`
    <${Filters} run=${run} info=${info} query=${query} change=${(values) => go(["episodes", run.run], values)} />
    <div class="actions">
      ${run.kind === "run" && html`<button onClick=${worst} disabled=${!info}>Worst group of the last step${stored > 0 && stored < run.step && ` with a checkpoint, ${stored}`}</button>`}
      <${Exports} run=${run} label="Export the ten best, one of a group" filters=${{ ...query, sort: "best", best_of_group: true }} limit=${10} />
      <${Exports} run=${run} label="Export what is filtered" filters=${query} limit=${10000} />
      ${Object.values(query).some(Boolean) && html`<a href=${link(["episodes", run.run])}>Clear the filters</a>`}
    </div>
    ${run.open_sessions > 0 && html`<p class="note">Open sessions, each listed once it has ended: ${run.open_sessions}</p>`}
    <${Failure} error=${failed ?? first.error} />${!first.data && !first.error && html`<${Awaited} />`}
    ${first.data && !episodes.length && html`<p class="empty card">${cursor ? "None so far." : "No episode is like that."}</p>`}
    ${episodes.length > 0 && html`<${Rows} run=${run} episodes=${episodes} query=${query} />`}
    ${cursor && html`<p><button onClick=${further}>${searching ? "Search further" : "Show more"}</button>${" "}
      ${searching && searched != null && html`<span class="note">Searched down to episode ${searched}.</span>`}</p>`}
  `;
}

const inWords = (value) => (typeof value === "string" ? value : JSON.stringify(value));
const start = (text) => (text.length > 700 ? `${text.slice(0, 700)}…` : text);

function Member({ run, one, of }) {
  const full = useApi(`runs/${run.run}/episodes/${one.id}`).data;
  const fact = (name, value, kind = "") => html`<div><dt>${name}</dt><dd class="figure ${kind}">${value}</dd></div>`;
  return html`<article class="card member">
    <h2><a href=${link(["episode", run.run, one.id], { group: of })}>Episode ${one.id}</a> <${Ending} reason=${one.reason} /></h2>
    <dl>${fact("reward", figure(one.reward))}${fact("advantage", `${one.advantage > 0 ? "+" : ""}${figure(one.advantage)}`, one.advantage > 0 ? "good" : "bad")}${fact("tokens", figure(one.tokens, 5))}</dl>
    ${one.error && html`<${Text} text=${one.error.slice(0, 400)} kind="text mono bad" />`}
    ${!full && html`<${Awaited} />`}
    ${full?.turns.map(({ reply }) => html`<div class="reply"><${Text} text=${start(reply.text)} />
      ${reply.tool_calls.map((call) => html`<p class="mono call">${call.name} ${start(inWords(call.arguments))}</p>`)}</div>`)}
  </article>`;
}

/** Show a group: its episodes side by side, best first. */
export function GroupPage({ run, item }) {
  const { data, error } = useApi(`runs/${run.run}/groups/${item}`);
  const opening = useApi(data?.episodes.length ? `runs/${run.run}/episodes/${data.episodes[0].id}` : null).data;
  if (!data) return html`<${Awaited} error=${error} />`;
  const asked = opening?.turns[0]?.messages.filter((one) => one.role !== "system").map((one) => one.text);
  const episodes = [...data.episodes].sort((a, b) => b.reward - a.reward);
  const { task, epoch, state, rejected: dropped, step, version } = data;
  const facts = given({ task, epoch, state: step == null ? state : null, dropped, "trained in step": step, "began under weights": `v${version}` });
  return html`
    <div class="heading"><h1>Group ${data.group}</h1><p>${facts.map(([name, value]) => html`<span>${name} <b>${String(value)}</b></span>`)}</p></div>
    <${Failure} error=${error} />
    ${asked?.length > 0 && html`<section class="card"><h2>Asked</h2><${Text} text=${asked.join("\n\n")} /></section>`}
    <section class="members" tabindex="0" aria-label="episodes of the group">${episodes.map((one) => html`<${Member} key=${one.id} run=${run} one=${one} of=${data.group} />`)}</section>
  `;
}
