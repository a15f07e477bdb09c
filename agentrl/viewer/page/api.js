// Ask the server, and say numbers as people read them.
//
//   page ─► useApi, useRows ─► usePolled ─► GET /api/... ─► {data, error}
//                                 ▲ again every `every_s` while it is given

import { useEffect, useState } from "./vendor/htm-preact.js";

const NONE = {};

/** Return what the server answers; throw an Error with its words otherwise. */
export async function get(path, parameters = {}) {
  const response = await fetch(address(path, parameters));
  const body = await response.json().catch(() => ({}));
  if (!response.ok) throw new Error(body.error ?? `the server answered ${response.status}`);
  return body;
}

/** Return the address of a question, without the parameters that say nothing. */
export const address = (path, parameters = {}) => `/api/${path}${queryOf(parameters)}`;

/** Return the fields of an object that say something. */
export const given = (values) => Object.entries(values).filter(([, value]) => value !== "" && value != null);

/** Return parameters as the end of an address. */
export function queryOf(parameters) {
  const query = new URLSearchParams(given(parameters)).toString();
  return query && `?${query}`;
}

/** Ask whenever `key`, `every_s` or `changed` does, and again every `every_s`; `ask` is given the last answer. One that fails keeps the last on the page. */
export function usePolled(key, ask, every_s = 0, changed = "") {
  const [state, setState] = useState({});
  useEffect(() => {
    let [current, timer, data] = [true, 0, undefined];
    const poll = async () => {
      const error = await ask(data).then((answer) => void (data = answer), (failure) => failure);
      if (!current) return;
      setState((last) => ({ key, error, data: error && last.key === key ? last.data : data }));
      if (every_s) timer = setTimeout(poll, every_s * 1000);
    };
    if (key) poll();
    return () => {
      current = false;
      clearTimeout(timer);
    };
  }, [key, every_s, changed]);
  return state.key === key ? state : {};
}

/** Return what the server answers to a question, {data, error}, asked again every `every_s`. */
export const useApi = (path, parameters = {}, every_s = 0) => usePolled(path && address(path, parameters), () => get(path, parameters), every_s);

/** Return the rows of the metrics of several runs by their number; those of a run that goes on grow by what is new. */
export function useRows(runs) {
  const ask = async (known = {}) => {
    const grown = { ...known };
    for (const { run } of runs) {
      const { steps } = await get(`runs/${run}/metrics`, { after: known[run]?.at(-1)?.step ?? 0 }).catch(() => ({ steps: [] }));
      if (steps.length || !known[run]) grown[run] = [...(known[run] ?? []), ...steps];
    }
    return runs.some(({ run }) => grown[run] !== known[run]) ? grown : known;
  };
  const every_s = runs.some((run) => run.status === "running") ? 2 : 0;
  return usePolled(runs.map((run) => run.run).join(), ask, every_s).data ?? NONE;
}

/** Say a number in at most `digits` significant digits, with thin gaps between thousands; a dash for none. */
export function figure(value, digits = 3) {
  if (value == null || typeof value !== "number") return "–";
  if (value !== 0 && (Math.abs(value) < 1e-3 || Math.abs(value) >= (digits > 3 ? 1e15 : 1e9))) return Number(value.toPrecision(3)).toExponential();
  const places = Number.isInteger(value) ? 0 : digits - 1 - Math.floor(Math.log10(Math.abs(value) || 1));
  return value.toLocaleString("en", { maximumFractionDigits: Math.max(0, places) }).replaceAll(",", "\u202f");
}

/** Say seconds as a person would. */
export function duration(seconds) {
  if (seconds == null) return "–";
  if (seconds < 60) return `${figure(seconds, 2)} s`;
  const [hours, minutes] = [Math.floor(seconds / 3600), Math.floor((seconds % 3600) / 60)];
  return hours ? `${hours} h ${minutes} min` : `${minutes} min ${Math.floor(seconds % 60)} s`;
}

/** Return a share as a percentage. */
export const percent = (share) => (share == null || Number.isNaN(share) ? "–" : `${(100 * share).toFixed(share < 0.1 ? 1 : 0)} %`);

/** Say a moment of the wall clock. */
export const moment = (seconds) => (seconds == null ? "–" : new Date(seconds * 1000).toLocaleString("sv"));
