// Parts that several pages share: where the reader is, long texts that fold, and values as tables.

import { html, useEffect, useState } from "./vendor/htm-preact.js";
import { figure, moment, queryOf } from "./api.js";

const FOLD = 20000;
const ROWS = 12;
const FIELDS = 200;

/** Return where the reader is: `#/page/run/item?name=value`. */
export function place() {
  const [path, query = ""] = location.hash.slice(2).split("?");
  const [page = "run", run = "0", item] = path.split("/").map(decodeURIComponent);
  return { page: page || "run", run: Number(run), item, query: Object.fromEntries(new URLSearchParams(query)) };
}

/** Return the address of a page, for a link. */
export const link = (parts, query = {}) => `#/${parts.map(encodeURIComponent).join("/")}${queryOf(query)}`;

/** Go to a page. */
export const go = (parts, query) => void (location.hash = link(parts, query));

/** Call a function at each event of a name, for as long as this is on the page. */
export function useListener(target, name, handler) {
  useEffect(() => {
    target.addEventListener(name, handler);
    return () => target.removeEventListener(name, handler);
  });
}

/** Return the first characters of a text, or items of a list, and a button for more of them. */
function useStart(all, first, name) {
  const [length, setLength] = useState(first);
  const more = all.length > length && html`<button class="more" onClick=${() => setLength(length * 5)}>Show more: ${figure(length, 9)} of ${figure(all.length, 9)} ${name} are here</button>`;
  return [all.slice(0, length), more];
}

/** Show a text of a run as it is, and a long one in pieces. */
export function Text({ text, kind = "text" }) {
  const all = String(text ?? "");
  const [start, more] = useStart(all, FOLD, "characters");
  return html`<div class=${kind} tabindex=${kind.includes("mono") && all.length > 1500 ? 0 : null}>${start}</div>${more}`;
}

/** Return a text of JSON indented, and any other as it is. */
export function pretty(value) {
  if (typeof value !== "string") return JSON.stringify(value, null, 2);
  try {
    const parsed = JSON.parse(value);
    return typeof parsed === "object" ? JSON.stringify(parsed, null, 2) : value;
  } catch {
    return value;
  }
}

const isTable = (value) => value && typeof value === "object" && !Array.isArray(value);

/** Show a value of JSON: an object as rows, a list of objects as a table, all else as text. */
export function Fields({ value }) {
  const entries = Object.entries(typeof value === "object" && value ? value : {});
  const [start, more] = useStart(entries, FIELDS, "entries");
  if (value == null) return html`<span class="dim">none</span>`;
  if (typeof value === "number") return html`<span class="figure">${figure(value, 6)}</span>`;
  if (typeof value === "boolean") return html`<span class=${value ? "good" : "bad"}>${value ? "yes" : "no"}</span>`;
  if (typeof value !== "object") return html`<${Text} text=${value} kind="text mono" />`;
  if (!entries.length) return html`<span class="dim">none</span>`;
  if (Array.isArray(value) && value.every((one) => typeof one === "number")) return html`<span>${start.map(([, one]) => figure(one, 6)).join(", ")}</span>${more}`;
  if (Array.isArray(value) && value.every(isTable)) {
    const columns = [...new Set(value.flatMap(Object.keys))].slice(0, FIELDS);
    const table = html`<div class="scroll" tabindex="0"><table>
      <thead><tr>${columns.map((name) => html`<th>${name}</th>`)}</tr></thead>
      <tbody>${start.map(([, one]) => html`<tr>${columns.map((name) => html`<td>${name in one && html`<${Fields} value=${one[name]} />`}</td>`)}</tr>`)}</tbody>
    </table></div>${more}`;
    return value.length > ROWS ? html`<details><summary>${value.length} rows</summary>${table}</details>` : table;
  }
  return html`<div class="scroll" tabindex="0"><table class="fields"><tbody>
    ${start.map(([name, inner]) => html`<tr><th scope="row">${name}</th><td><${Fields} value=${name.endsWith("_at") && typeof inner === "number" ? moment(inner) : inner} /></td></tr>`)}
  </tbody></table></div>${more}`;
}

/** Show why something is not here. */
export const Failure = ({ error }) => error && html`<p class="bad notice" role="alert">${error.message}</p>`;

/** Show that something is on its way, or why it is not. */
export const Awaited = ({ error }) => (error ? html`<${Failure} error=${error} />` : html`<p class="awaited" role="status">Reading…</p>`);

/** Show how an episode ended. */
export const Ending = ({ reason }) => html`<span class="ending ${reason === "finished" ? "good" : "bad"}">${reason.replaceAll("_", " ")}</span>`;

/** Show a reward with a bar whose length is its place between the lowest and the highest beside it. */
export function Reward({ value, low, high }) {
  const share = Math.max(0, Math.min(1, (value - low) / (high - low || 1)));
  return html`<span class="reward"><span class="figure">${figure(value)}</span><i class="bar" style=${{ "--share": share }}></i></span>`;
}
