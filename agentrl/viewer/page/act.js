// Acts on an episode, where `agentrl view --act` serves the page: continuations of a turn, its tokens under other weights, its reward again.
//
//   POST /api/runs/0/episodes/1/fork {turn, checkpoint, count}   /score {checkpoint}   /grade {}

import { html, useEffect, useState } from "./vendor/htm-preact.js";
import { figure, useApi } from "./api.js";
import { Ending, Failure, Fields, Text } from "./parts.js";
import { Tokens } from "./tokens.js";

const COUNTS = [1, 2, 4, 8, 16];
const BASE = "base, the model before training";
const weights = (checkpoint) => (checkpoint == null ? "base" : `checkpoint ${checkpoint}`);

/** Return what came of an act so far, and what asks for it. */
function useAct(address, kind) {
  const [state, setState] = useState({});
  const ask = async (body) => {
    setState({ going: true });
    try {
      const headers = { "Content-Type": "application/json" };
      const response = await fetch(`${address}/${kind}`, { method: "POST", headers, body: JSON.stringify(body) });
      const data = await response.json();
      if (!response.ok) throw new Error(data.error);
      setState({ data, asked: body });
    } catch (error) {
      setState({ error });
    }
  };
  return [state, ask];
}

/** Return the address of an episode's acts, the checkpoint that they are under, and its tokens' log p there; null where the page only reads. */
export function useActs(run, item) {
  const { data } = useApi(run.acts && `runs/${run.run}`);
  const [checkpoint, setCheckpoint] = useState(null);
  const [scores, setScores] = useState(null);
  useEffect(() => setScores(null), [item]);
  if (!run.acts) return null;
  return { address: `/api/runs/${run.run}/episodes/${item}`, checkpoints: data?.checkpoints ?? [], checkpoint, setCheckpoint, scores, setScores };
}

/** Return turns whose tokens have what they were scored to be, if they were. */
export const scored = (turns, acts) =>
  acts?.scores ? turns.map((turn, i) => ({ ...turn, reply: { ...turn.reply, tokens: { ...turn.reply.tokens, scored: acts.scores[i] } } })) : turns;

/** Say in words what the scores of an episode's tokens come to. */
function verdict(turns) {
  const both = turns.flatMap(({ reply: { tokens } }) => tokens.logprobs.map((then, i) => [then, tokens.scored?.[i]])).filter(([, now]) => now != null);
  const [then, now] = [0, 1].map((which) => both.reduce((sum, one) => sum + one[which], 0) / both.length);
  if (!both.length) return "no token was scored";
  return `a mean of ${figure(now)} in place of ${figure(then)} nats a token, so the replies are ${now > then ? "more" : "less"} probable`;
}

const Going = ({ state, text }) => html`${state.going && html`<span class="dim" role="status">${text}</span>`}<${Failure} error=${state.error} />`;

/** Choose the weights of acts, score the tokens of the episode again, and grade it again. */
export function Acts({ acts, episode, turns, onScored }) {
  const [score, askScore] = useAct(acts.address, "score");
  const [grade, askGrade] = useAct(acts.address, "grade");
  useEffect(() => {
    if (!score.data) return;
    acts.setScores(score.data.logprobs);
    onScored();
  }, [score.data]);
  const choose = (event) => acts.setCheckpoint(event.target.value === "" ? null : Number(event.target.value));
  return html`<section class="card acts" aria-label="acts">
    <div class="actions">
      <label>Under <select aria-label="weights" value=${acts.checkpoint ?? ""} onChange=${choose}>
        <option value="">${BASE}</option>
        ${acts.checkpoints.map(({ step, best }) => html`<option value=${step}>checkpoint of step ${step}${best ? ", the best" : ""}</option>`)}
      </select></label>
      <button disabled=${score.going} onClick=${() => askScore({ checkpoint: acts.checkpoint })}>Score again</button>
      <button disabled=${grade.going} onClick=${() => askGrade({})}>Grade again</button>
      <${Going} state=${score} text="loading the weights, scoring…" /><${Going} state=${grade} text="running the workflow…" />
      ${score.data && html`<span class="dim">Tokens are coloured by log p of ${weights(score.asked.checkpoint)} − logprob as recorded: ${verdict(turns)}.</span>`}
    </div>
    ${grade.data && html`<${Grade} grade=${grade.data} episode=${episode} />`}
  </section>`;
}

function Grade({ grade, episode }) {
  const names = [...new Set([...Object.keys(episode.metrics), ...Object.keys(grade.metrics)])];
  const rows = [["reward", episode.reward, grade.reward], ...names.map((name) => [name, episode.metrics[name], grade.metrics[name]])];
  return html`<div class="scroll" tabindex="0"><table class="graded">
      <thead><tr><td></td><th>recorded</th><th>now</th></tr></thead>
      <tbody>
        <tr><th scope="row">ended</th><td><${Ending} reason=${episode.reason} /></td><td><${Ending} reason=${grade.reason} /></td></tr>
        ${rows.map(([name, then, now]) => html`<tr><th scope="row">${name}</th><td class="figure">${figure(then)}</td><td class="figure">${figure(now)}</td></tr>`)}
      </tbody>
    </table></div>
    ${grade.details && html`<h2>Details of the reward now</h2><${Fields} value=${grade.details} />`}
    ${grade.unknown.length > 0 && html`<h2>Asked now, and not in the record</h2>${grade.unknown.map((text) => html`<${Text} text=${text} kind="text mono" />`)}`}
    ${grade.error && html`<h2>Why it failed now</h2><${Text} text=${grade.error} kind="text mono" />`}`;
}

/** Continue a turn's prompt again, beside the recorded reply. */
export function Fork({ acts, turn, onLook }) {
  const [state, ask] = useAct(acts.address, "fork");
  const [count, setCount] = useState(4);
  const [forked, setForked] = useState([]);
  useEffect(() => {
    if (state.data) setForked((before) => [...state.data.continuations.map((one, i) => [`${weights(state.asked.checkpoint)}, ${i + 1}`, one]), ...before]);
  }, [state.data]);
  return html`<div class="fork">
    <div class="actions">
      <button disabled=${state.going} onClick=${() => ask({ turn: turn.index, checkpoint: acts.checkpoint, count })}>Fork here</button>
      <label><select aria-label="continuations" value=${count} onChange=${(event) => setCount(Number(event.target.value))}>${COUNTS.map((one) => html`<option value=${one}>${one}</option>`)}</select>${" "}
        continuations under ${weights(acts.checkpoint)}</label>
      <${Going} state=${state} text="generating… the first fork starts an engine" />
    </div>
    ${forked.length > 0 && html`<div class="members">${[["recorded", turn.reply], ...forked].map(([name, reply]) => html`<${Continuation} name=${name} reply=${reply} onLook=${onLook} />`)}</div>`}
  </div>`;
}

function Continuation({ name, reply, onLook }) {
  const { logprobs } = reply.tokens;
  const mean = logprobs.length ? logprobs.reduce((sum, one) => sum + one, 0) / logprobs.length : null;
  return html`<section class="card member"><h2>${name}</h2>
    <p class="facts"><span>mean logprob <b class="figure">${figure(mean)}</b></span><span>tokens <b class="figure">${logprobs.length}</b></span></p>
    ${logprobs.length > 0 && html`<${Tokens} tokens=${reply.tokens} by="logprob" scale=${{}} onLook=${onLook} />`}
  </section>`;
}
