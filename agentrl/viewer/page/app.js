// The page of `agentrl view`: which run and which page are looked at.
//
//   #/run/0?with=1   #/timeline/0   #/episodes/0?reason=failed   #/group/0/12   #/episode/0/123

import { html, render, useEffect, useErrorBoundary, useState } from "./vendor/htm-preact.js";
import { useApi } from "./api.js";
import { EpisodePage } from "./episode.js";
import { EpisodesPage, GroupPage } from "./episodes.js";
import { Failure, go, link, place, useListener } from "./parts.js";
import { RunPage } from "./run.js";
import { TimelinePage } from "./timeline.js";

const PAGES = { run: RunPage, timeline: TimelinePage, episodes: EpisodesPage, group: GroupPage, episode: EpisodePage };
const TABS = [["run", "Run"], ["timeline", "Timeline"], ["episodes", "Episodes"]];
const WITHIN = { group: "episodes", episode: "episodes" };

function Head({ run, runs, page }) {
  const tabs = TABS.filter(([name]) => name !== "timeline" || run.kind === "run");
  return html`<header class="head">
    <a class="brand" href=${link(["run", run.run])}>agentrl</a>
    ${runs.length > 1
      ? html`<select aria-label="run" value=${run.run} onChange=${(event) => go([WITHIN[page] ?? page, event.target.value])}>
          ${runs.map((one) => html`<option value=${one.run} selected=${one === run}>${one.name}</option>`)}
        </select>`
      : html`<span class="name" title=${run.path}>${run.name}</span>`}
    <span class="status ${run.status}" role="status">${run.status}</span>
    <nav aria-label="pages">${tabs.map(([name, title]) => html`<a href=${link([name, run.run])} aria-current=${(WITHIN[page] ?? page) === name ? "page" : null}>${title}</a>`)}</nav>
  </header>`;
}

function Shown({ here, run, runs }) {
  const [broken, reset] = useErrorBoundary();
  useEffect(() => reset(), [here]);
  if (broken) return html`<p class="bad notice" role="alert">This part could not be shown: ${String(broken)}</p>`;
  const Page = PAGES[here.page] ?? RunPage;
  const tab = TABS.find(([name]) => name === here.page);
  return html`${tab && html`<h1 class="unseen">${tab[1]} · ${run.name}</h1>`}<${Page} key=${here.page + run.run} run=${run} runs=${runs} item=${here.item} query=${here.query} />`;
}

function App() {
  const [here, setHere] = useState(place());
  useListener(window, "hashchange", () => {
    const next = place();
    if (here.page !== next.page || here.item !== next.item) scrollTo(0, 0);
    setHere(next);
  });
  const { data, error } = useApi("runs", {}, 4);
  const runs = data?.runs ?? [];
  const run = runs.find((one) => one.run === here.run) ?? runs[0];
  useEffect(() => {
    if (run) document.title = `${here.item ? `${here.page} ${here.item}, ` : ""}${run.name} · agentrl`;
  }, [run?.name, here]);
  if (!run) return html`<main><${Failure} error=${error} />${data && html`<p class="empty card">There is no run here.</p>`}</main>`;
  return html`<${Head} run=${run} runs=${runs} page=${here.page} />
    ${error && html`<p class="notice" role="alert">The server does not answer: what is shown is as it was. (${error.message})</p>`}
    <main><${Shown} here=${here} run=${run} runs=${runs} /></main>`;
}

render(html`<${App} />`, document.body);
