// One episode: its conversation as people read it, the tree of its branches, and its tokens.
//
//   turns ─► messages that a turn added, then its reply: thought, text, tool calls ─► its tokens, coloured

import { html, useEffect, useMemo, useState } from "./vendor/htm-preact.js";
import { Acts, Fork, scored, useActs } from "./act.js";
import { duration, figure, given, moment, useApi } from "./api.js";
import { Exports } from "./episodes.js";
import { Awaited, Ending, Fields, Text, go, link, pretty, useListener } from "./parts.js";
import { Inspector, QUANTITIES, Scale, Tokens, known, scaleOf } from "./tokens.js";

const ROLES = { "?": "prompt", tool: "tool result" };

function Calls({ calls }) {
  return calls.map((call) => html`<div class="call"><span class="role">calls</span> <b class="mono">${call.name}</b><${Text} text=${pretty(call.arguments)} kind="text mono" /></div>`);
}

function Message({ message }) {
  const { role, text, thought, tool_calls } = message;
  const long = role === "system" && text.length > 300;
  const body = html`<${Text} text=${role === "tool" ? pretty(text) : text} kind=${role === "tool" ? "text mono" : "text"} />`;
  return html`<div class="message ${role === "?" ? "prompt" : role}">
    <span class="role">${ROLES[role] ?? role}</span>
    <${Thought} text=${thought} />
    ${long ? html`<details><summary>${text.slice(0, 120)}…</summary>${body}</details>` : body}
    <${Calls} calls=${tool_calls} />
  </div>`;
}

function Thought({ text }) {
  if (!text) return null;
  return html`<details class="thought"><summary>Thought, ${figure(text.length, 9)} characters</summary><${Text} text=${text} /></details>`;
}

/** Say what is not as usual about a turn. */
function notes(turn) {
  const said = [
    turn.role && `role ${turn.role}`,
    turn.truncated && "cut off for its length",
    turn.failed && "tool call that could not be carried out",
    new Set(turn.reply.tokens.versions).size > 1 && `new weights within the reply: ${[...new Set(turn.reply.tokens.versions)].map((version) => `v${version}`).join("→")}`,
    turn.left_out && "left out of training",
    !turn.trained && !turn.left_out && "not trained on",
    Object.keys(turn.alterations).length > 0 && `sampling altered: ${JSON.stringify(turn.alterations)}`,
  ];
  return said.filter(Boolean);
}

function Turn({ turn, before, by, scale, acts, onLook }) {
  const branches = turn.parent == null ? turn.index > 0 : turn.parent !== before;
  const temperature = turn.temperature === 1 ? null : turn.temperature;
  const numbers = given({ reward: turn.reward, return: turn.return, advantage: turn.advantage, temperature });
  const pictures = turn.images.filter((one) => one.startsWith("data:image/"));
  return html`<article class="turn ${turn.left_out ? "left_out" : ""}" id=${`turn-${turn.index}`}>
    <header><h2>Turn ${turn.index + 1}</h2>${branches && html`<span class="branch">${turn.parent == null ? "a new conversation" : `goes on from turn ${turn.parent + 1}`}</span>`}
      ${notes(turn).map((note) => html`<span class="note">${note}</span>`)}
      ${numbers.map(([name, value]) => html`<span>${name} <b class="figure">${figure(value)}</b></span>`)}
      ${turn.model && html`<span class="dim">${turn.model}</span>`}</header>
    ${turn.messages.map((message) => html`<${Message} message=${message} />`)}
    ${pictures.length > 0 && html`<div class="message pictures"><span class="role">pictures</span><div>
      ${pictures.map((one, i) => html`<img src=${one} alt=${`picture ${i} of the prompt`} />`)}
    </div></div>`}
    <div class="message assistant"><span class="role">reply</span>
      <${Thought} text=${turn.reply.thought} /><${Text} text=${turn.reply.text} /><${Calls} calls=${turn.reply.tool_calls} />
      ${turn.reply.tokens.ids.length > 0 && by !== "none" && html`<${Tokens} tokens=${turn.reply.tokens} by=${by} scale=${scale} onLook=${onLook} />`}
    </div>
    ${acts && html`<${Fork} acts=${acts} turn=${turn} onLook=${onLook} />`}
    ${turn.prompt_tokens > 0 && html`<${Prompt} turn=${turn} />`}
  </article>`;
}

function Prompt({ turn }) {
  const [open, setOpen] = useState(false);
  return html`<details class="raw" onToggle=${(event) => setOpen(event.currentTarget.open)}>
    <summary>Prompt as the model read it, ${figure(turn.prompt_tokens, 9)} tokens</summary>
    ${open && html`<${Text} text=${turn.prompt_text} kind="text mono" />`}
  </details>`;
}

/** Return where each turn stands in the picture: a column for its depth, a row for its branch. */
function layout(turns) {
  const places = new Map();
  const depths = new Map();
  let rows = 0;
  for (const turn of turns) {
    const above = places.get(turn.parent);
    const first = above && !above.used;
    if (above) above.used = true;
    depths.set(turn.index, above ? depths.get(turn.parent) + 1 : 0);
    places.set(turn.index, { x: depths.get(turn.index), y: first ? above.y : rows++, used: false });
  }
  return { places, rows, columns: Math.max(...depths.values()) + 1 };
}

function Tree({ turns }) {
  const { places, rows, columns } = useMemo(() => layout(turns), [turns]);
  const straight = turns.every((turn, i) => (turn.parent ?? -1) === i - 1);
  if (straight && turns.length < 4) return null;
  const at = (index) => [places.get(index).x * 34 + 16, places.get(index).y * 30 + 16];
  const show = (index) => document.getElementById(`turn-${index}`)?.scrollIntoView({ behavior: "smooth" });
  return html`<div class="scroll tree card" tabindex="0"><svg width=${columns * 34} height=${rows * 30 + 2} role="group" aria-label="the tree of turns">
    ${turns.filter((turn) => places.has(turn.parent)).map((turn) => {
      const [[x1, y1], [x2, y2]] = [at(turn.parent), at(turn.index)];
      return html`<path d="M${x1},${y1} C${x1 + 17},${y1} ${x2 - 17},${y2} ${x2},${y2}" />`;
    })}
    ${turns.map((turn) => {
      const [x, y] = at(turn.index);
      const name = `turn ${turn.index + 1}${turn.role ? `, ${turn.role}` : ""}${turn.left_out ? ", left out of training" : ""}`;
      const handlers = { onClick: () => show(turn.index), onKeyDown: (event) => event.key === "Enter" && show(turn.index) };
      return html`<g class="node ${turn.left_out ? "left_out" : ""} ${turn.trained ? "trained" : ""}" role="link" tabindex="0" aria-label=${name} ...${handlers}>
        <title>${name}</title><circle cx=${x} cy=${y} r="11" /><text x=${x} y=${y + 4}>${turn.index + 1}</text>
      </g>`;
    })}
  </svg></div>`;
}

function Command({ text }) {
  const [copied, setCopied] = useState(false);
  const copy = () => navigator.clipboard?.writeText(text).then(() => setCopied(true));
  return html`<p class="command"><code>${text}</code><button onClick=${copy}>${copied ? "Copied" : "Copy"}</button></p>`;
}

/** Show an episode. Keys j and k go to the next and the previous one of those that the filters of `query` leave. */
export function EpisodePage({ run, item, query }) {
  const [by, setBy] = useState("logprob");
  const [look, setLook] = useState(null);
  const { data, error } = useApi(`runs/${run.run}/episodes/${item}`);
  const neighbours = useApi(`runs/${run.run}/episodes/${item}/neighbours`, query).data ?? {};
  const acts = useActs(run, item);
  const turns = useMemo(() => scored(data?.turns ?? [], acts), [data, acts?.scores]);
  useEffect(() => {
    setLook(null);
    setBy((last) => (QUANTITIES[last]?.asked ? "logprob" : last));
  }, [item]);
  useListener(document, "keydown", (event) => {
    if (event.target.closest("input, select, textarea") || event.ctrlKey || event.metaKey || event.altKey) return;
    const to = { j: neighbours.next, k: neighbours.previous }[event.key];
    if (to != null) go(["episode", run.run, to], query);
  });
  const there = useMemo(() => new Set(turns.flatMap((turn) => known(turn.reply.tokens))), [turns]);
  const scale = useMemo(() => by !== "none" && scaleOf(turns.map((turn) => turn.reply.tokens), by), [turns, by]);
  if (!data) return html`<${Awaited} error=${error} />`;
  const { episode, details } = data;
  const newest = turns.flatMap((turn) => turn.reply.tokens.versions).reduce((one, other) => Math.max(one, other), episode.version);
  const facts = {
    reward: figure(episode.reward),
    task: episode.task,
    group: html`<a href=${link(["group", run.run, episode.group])}>${episode.group}</a>`,
    step: episode.step,
    staleness: episode.staleness,
    weights: newest > episode.version ? `v${episode.version} to v${newest}` : `v${episode.version}`,
    tokens: figure(episode.tokens, 6),
    took: duration(episode.duration_s),
    began: moment(episode.started_at),
  };
  const neighbour = (which, key) => {
    const name = html`${which} <kbd>${key}</kbd>`;
    if (neighbours[which] == null) return html`<span class="button off">${name}</span>`;
    return html`<a class="button" href=${link(["episode", run.run, neighbours[which]], query)}>${name}</a>`;
  };
  const choices = Object.entries(QUANTITIES).filter(([key, { asked }]) => !asked || there.has(key)).map(
    ([key, { name }]) => html`<option value=${key} disabled=${!there.has(key)}>${name}${there.has(key) ? "" : " (not kept)"}</option>`,
  );
  return html`
    <div class="heading">
      <h1>Episode ${episode.id} <${Ending} reason=${episode.reason} /></h1>
      <nav aria-label="neighbours">${neighbour("previous", "k")}${neighbour("next", "j")}</nav>
    </div>
    <dl class="tiles small">${given(facts).map(([name, value]) => html`<div><dt>${name}</dt><dd>${value}</dd></div>`)}</dl>
    ${Object.keys(episode.metrics).length > 0 && html`<p class="facts">
      ${Object.entries(episode.metrics).map(([name, value]) => html`<span>${name} <b class="figure">${figure(value)}</b></span>`)}
    </p>`}
    ${episode.error && html`<section class="card failure"><h2>Why it failed</h2><${Text} text=${episode.error} kind="text mono" /></section>`}
    ${details && html`<section class="card"><h2>Details of the reward</h2><${Fields} value=${details} /></section>`}
    ${acts && html`<${Acts} key=${item} acts=${acts} episode=${episode} turns=${turns} onScored=${() => setBy("difference")} />`}
    <${Tree} turns=${turns} />
    ${turns.length === 0 && html`<p class="empty card">No call of the model is recorded; those of an endpoint (--base-url) are not.</p>`}
    ${turns.length > 0 && html`<div class="bar-of-tokens">
      <label>Tokens coloured by${" "}
        <select value=${by} onChange=${(event) => setBy(event.target.value)}>${choices}<option value="none">no tokens</option></select>
      </label>
      ${by !== "none" && html`<${Scale} by=${by} />`}
    </div>`}
    ${turns.map((turn, i) => html`<${Turn} key=${`${episode.id}.${turn.index}`} turn=${turn} before=${turns[i - 1]?.index} by=${by} scale=${scale} acts=${acts} onLook=${setLook} />`)}
    <div class="actions"><${Exports} run=${run} label="Export this episode" filters=${{ id: item }} />${data.replay && html`<${Command} key=${item} text=${data.replay} />`}</div>
    <${Inspector} look=${look} close=${() => setLook(null)} />
  `;
}
