// The tokens of a reply, coloured by what the reader chooses, and all quantities of the one that is looked at.

import { html, useMemo, useState } from "./vendor/htm-preact.js";
import { figure } from "./api.js";

const AT_ONCE = 5000;

const ratio = (t, i) => (t.proximal?.[i] == null ? null : t.proximal[i] - t.logprobs[i]);

const difference = (t, i) => (t.scored?.[i] == null ? null : t.scored[i] - t.logprobs[i]);

/** The quantities: their name, what the deepest colours mean, and the value at a token. `signed` has two colours; `asked` is there after an act. */
export const QUANTITIES = {
  logprob: { name: "logprob", of: (t, i) => t.logprobs[i], share: (x) => -x / 4, unit: "nats", legend: ["0", "−4 nats or less"] },
  ratio: { name: "log p/b", of: ratio, share: (x) => x / 0.5, unit: "nats", signed: true, legend: ["−0.5", "+0.5 nats"] },
  difference: { name: "difference of log p", of: difference, share: (x) => x / 0.5, unit: "nats", signed: true, asked: true, legend: ["−0.5", "+0.5 nats"] },
  advantage: { name: "advantage", of: (t, i) => t.advantages?.[i], share: (x, top) => x / top, unit: "", signed: true, legend: ["worse", "better"] },
  entropy: { name: "entropy", of: (t, i) => t.entropy?.[i], share: (x) => x / 3, unit: "nats", legend: ["0", "3 nats or more"] },
  mask: { name: "loss mask", of: (t, i) => Number(t.loss_mask[i]), share: (x) => x, unit: "", legend: ["left out", "trained on"] },
  version: { name: "policy version", of: (t, i) => t.versions[i], share: (x, top, low) => (top > low ? (x - low) / (top - low) : 0.5), unit: "", legend: ["oldest", "newest"] },
};

/** Return which quantities a reply has. */
export const known = (tokens) => Object.keys(QUANTITIES).filter((key) => tokens.ids.some((_, i) => QUANTITIES[key].of(tokens, i) != null));

/** Return the lowest, the highest and the largest value of a quantity in all replies, which its colours span. */
export function scaleOf(replies, by) {
  let [low, high, most] = [Infinity, -Infinity, 0];
  for (const tokens of replies) {
    tokens.ids.forEach((_, i) => {
      const value = QUANTITIES[by].of(tokens, i);
      if (value != null) [low, high, most] = [Math.min(low, value), Math.max(high, value), Math.max(most, Math.abs(value))];
    });
  }
  return { low, high, most };
}

/** Show what a token's text hides: line ends, tabs, other control characters. */
const visible = (text) =>
  text.replaceAll("\n", "⏎\n").replaceAll("\t", "⇥").replace(/[\u0000-\u0008\u000b-\u001f]/g, (one) => String.fromCharCode(0x2400 + one.charCodeAt(0)));

/** Show the scale of a quantity. */
export function Scale({ by }) {
  const quantity = QUANTITIES[by];
  return html`<span class="scale" aria-label="scale"><span>${quantity.legend[0]}</span><i class=${quantity.signed ? "signed" : "plain"}></i><span>${quantity.legend[1]}</span></span>`;
}

/** Show the tokens of a reply. Arrow keys go through them; `onLook` is told of the one that is pointed at. */
export function Tokens({ tokens, by, scale, onLook }) {
  const [all, setAll] = useState(false);
  const [at, setAt] = useState(null);
  const count = all ? tokens.ids.length : Math.min(AT_ONCE, tokens.ids.length);
  const quantity = QUANTITIES[by];
  const spans = useMemo(() => {
    const made = [];
    for (let i = 0; i < count; i += 1) {
      const { versions } = tokens;
      if (i && versions[i] !== versions[i - 1]) {
        made.push(html`<span class="cut" title="a weight update came while this reply was generated">weights v${versions[i - 1]}→v${versions[i]}</span>`);
      }
      const value = quantity.of(tokens, i);
      const share = value == null ? 0 : quantity.share(value, quantity.signed ? scale.most || 1 : scale.high, scale.low);
      const kind = value == null ? "none" : share < 0 ? "minus" : "plus";
      const depth = { "--share": Math.min(1, Math.abs(share)).toFixed(2) };
      made.push(html`<span class="token ${kind}" style=${depth} data-i=${i}>${visible(tokens.text[i])}</span>`);
    }
    return made;
  }, [tokens, by, count, scale]);
  const look = (i, box) => {
    box.querySelector(".token.at")?.classList.remove("at");
    box.querySelector(`[data-i="${i}"]`)?.classList.add("at");
    setAt(i);
    onLook({ tokens, i });
  };
  const point = (event) => {
    const i = event.target.dataset?.i;
    if (i !== undefined && Number(i) !== at) look(Number(i), event.currentTarget);
  };
  const key = (event) => {
    const move = { ArrowLeft: -1, ArrowRight: 1, Home: -Infinity, End: Infinity }[event.key];
    if (!move) return;
    event.preventDefault();
    look(Math.max(0, Math.min(count - 1, (at ?? -1) + move)), event.currentTarget);
  };
  const begin = (event) => at == null && look(0, event.currentTarget);
  const name = `tokens of the reply, by ${quantity.name}; arrow keys go through them`;
  const handlers = { onMouseOver: point, onClick: point, onKeyDown: key, onFocus: begin };
  return html`<div class="tokens" tabindex="0" role="group" aria-label=${name} ...${handlers}>${spans}</div>
    ${count < tokens.ids.length && html`<button class="more" onClick=${() => setAll(true)}>Draw all ${figure(tokens.ids.length, 9)} tokens</button>`}`;
}

/** Show the token that is looked at, with all its quantities. */
export function Inspector({ look, close }) {
  if (!look) return null;
  const { tokens, i } = look;
  const shown = Object.values(QUANTITIES).filter((quantity) => !quantity.asked || quantity.of(tokens, i) != null);
  const entries = shown.map((quantity) => [quantity.name, quantity.of(tokens, i), quantity.unit]);
  return html`<aside class="inspector" aria-live="polite">
    <span class="what"><b class="mono">${JSON.stringify(tokens.text[i])}</b> <span class="dim">id ${tokens.ids[i]}, token ${i + 1} of ${tokens.ids.length}</span></span>
    ${entries.map(([name, value, unit]) => html`<span class=${value == null ? "dim" : ""}>${name} <b class="figure">${figure(value, 4)}</b>${value == null ? "" : ` ${unit}`}</span>`)}
    <button class="quiet" onClick=${close} aria-label="close">✕</button>
  </aside>`;
}
