// Ask the server, and say numbers as people read them.
//
//   page ─► useApi ─► GET /api/... ─► {data, error}
//             ▲ again every `every_s` while it is given

import { useEffect, useState } from "./vendor/htm-preact.js";

/** Return what the server answers; throw an Error with its words otherwise. */
export async function get(path, parameters = {}) {
  const response = await fetch(address(path, parameters));
  const body = await response.json().catch(() => ({}));
  if (!response.ok) throw new Error(body.error ?? `the server answered ${response.status}`);
  return body;
}

/** Return the address of a question, without the parameters that say nothing. */
export function address(path, parameters = {}) {
  const query = new URLSearchParams(
    Object.entries(parameters).filter(([, value]) => value !== "" && value != null),
  ).toString();
  return `/api/${path}${query ? `?${query}` : ""}`;
}

/** Ask whenever the question changes, and again every `every_s`. An answer that fails keeps the last one on the page. */
export function useApi(path, parameters = {}, every_s = 0) {
  const question = path && address(path, parameters);
  const [state, setState] = useState({});
  useEffect(() => {
    let current = true;
    let timer = 0;
    const ask = async () => {
      try {
        const data = await get(path, parameters);
        if (current) setState({ question, data });
      } catch (error) {
        if (current) setState((last) => ({ question, error, data: last.question === question ? last.data : undefined }));
      }
      if (current && every_s) timer = setTimeout(ask, every_s * 1000);
    };
    if (question) ask();
    return () => {
      current = false;
      clearTimeout(timer);
    };
  }, [question, every_s]);
  return state.question === question ? state : {};
}

/** Return the rows of the metrics of several runs by their number; those of a run that goes on grow by what is new. */
export function useRows(runs) {
  const [rows, setRows] = useState({});
  const going = runs.filter((run) => run.status === "running").map((run) => run.run);
  useEffect(() => {
    let current = true;
    let timer = 0;
    const held = {};
    const ask = async (numbers) => {
      for (const number of numbers) {
        const known = held[number] ?? [];
        const answer = await get(`runs/${number}/metrics`, { after: known.at(-1)?.step ?? 0 }).catch(() => ({ steps: [] }));
        if (!current) return;
        if (answer.steps.length || !held[number]) {
          held[number] = [...known, ...answer.steps];
          setRows({ ...held });
        }
      }
      if (current && going.length) timer = setTimeout(ask, 2000, going);
    };
    ask(runs.map((run) => run.run));
    return () => {
      current = false;
      clearTimeout(timer);
    };
  }, [runs.map((run) => `${run.run}${run.status}`).join()]);
  return rows;
}

/** Say a number in at most `digits` significant digits, with thin gaps between thousands; a dash for none. */
export function figure(value, digits = 3) {
  if (value == null || typeof value !== "number") return "–";
  if (value !== 0 && (Math.abs(value) < 1e-3 || Math.abs(value) >= 1e9)) return Number(value.toPrecision(3)).toExponential();
  const places = Math.abs(value) >= 1000 || Number.isInteger(value) ? 0 : digits - 1 - Math.floor(Math.log10(Math.abs(value) || 1));
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
