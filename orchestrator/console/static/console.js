// The console's own script: keeps a page up to date without losing what its reader does on it, and shows times in the
// reader's zone. Everything works without it; then a page is a picture of one moment.
"use strict";

(() => {
  const $ = (selector, from = document) => from.querySelector(selector);
  const state = $("#state"), pause = $("#pause"), away = $("#away");
  const full = new Intl.DateTimeFormat(undefined, { dateStyle: "medium", timeStyle: "medium" });
  const short = new Intl.DateTimeFormat(undefined, { timeStyle: "medium" });
  const clock = { format: (when) => (when.toDateString() === new Date().toDateString() ? short : full).format(when) };

  const showTimes = (from) => {
    for (const element of from.querySelectorAll("time[datetime]")) {
      const when = new Date(element.dateTime);
      if (Number.isNaN(when.getTime())) continue;
      element.textContent = clock.format(when);
      element.title = element.dateTime;
    }
  };
  const showChoices = (from) => {
    for (const label of from.querySelectorAll("label.all")) label.hidden = false;
  };
  const say = (text) => { if (state && state.textContent !== text) state.textContent = text; };

  // A form that somebody has begun to fill in stays as it is; so does what was unfolded.
  const isBegun = (node) => node.nodeName === "FORM" && node.classList.contains("begun");
  Idiomorph.defaults.ignoreActiveValue = true;
  Object.assign(Idiomorph.defaults.callbacks, {
    beforeNodeMorphed: (old) => !isBegun(old),
    beforeNodeRemoved: (node) => !(node.nodeType === 1 && (isBegun(node) || node.querySelector("form.begun"))),
    beforeAttributeUpdated: (name, node) => !(name === "open" && node.nodeName === "DETAILS"),
  });
  document.addEventListener("input", (event) => {
    const form = event.target.closest("#live form");
    if (!form) return;
    form.classList.add("begun");
    if (event.target.matches("[data-all]")) {
      for (const box of form.querySelectorAll('input[name="dead"]')) box.checked = event.target.checked;
    }
  });
  document.addEventListener("keydown", (event) => {
    if (event.key !== "/" || event.ctrlKey || event.metaKey || event.altKey) return;
    if (event.target.closest("input, textarea, select")) return;
    const field = $("#q") || $("#find");
    if (field) { event.preventDefault(); field.focus(); }
  });
  document.body.addEventListener("htmx:afterSwap", () => { showTimes(document); showChoices(document); });

  showTimes(document);
  showChoices(document);
  if (!pause || !$("#live") || !document.body.dataset.events) return;

  let source = null, busy = false, again = false, at = new Date();
  const isPaused = () => sessionStorage.getItem("paused") === "yes";
  const tell = () => {
    const time = clock.format(at);
    say(isPaused() ? `Updates are paused: this page is from ${time}.` : `Up to date: ${time}.`);
    pause.textContent = isPaused() ? "Go on with updates" : "Pause updates";
  };
  const refresh = async () => {
    if (busy) { again = true; return; }
    busy = true;
    again = false;
    try {
      await htmx.ajax("GET", location.href, { target: "#live", select: "#live", swap: "morph:outerHTML" });
      at = new Date();
    } catch { /* the next tick tries again */ } finally {
      busy = false;
    }
    if (!isPaused()) tell();
    if (again) setTimeout(refresh, 300);
  };
  // An update that was asked for before its reader went elsewhere would take back what they did.
  document.body.addEventListener("htmx:beforeSwap", ({ detail }) => {
    if (detail.requestConfig.elt !== document.body || detail.pathInfo.requestPath === location.href) return;
    detail.shouldSwap = false;
    again = true;
  });
  const warn = (text) => { away.textContent = text; away.hidden = !text; };
  const listen = () => {
    source = new EventSource(document.body.dataset.events);
    let lost = false;
    source.addEventListener("hello", () => { warn(""); if (lost) refresh(); lost = false; });
    source.addEventListener("tick", () => { warn(""); lost = false; refresh(); });
    source.addEventListener("away", (event) => {
      lost = true;
      warn(`No stack answers; this page is from ${clock.format(at)}. ${event.data}`);
    });
    source.onerror = () => {
      lost = true;
      warn(`The console does not answer; this page is from ${clock.format(at)}. Trying again.`);
      if (source.readyState === EventSource.CLOSED) setTimeout(() => { if (!isPaused()) listen(); }, 3000);
    };
  };
  pause.hidden = false;
  pause.addEventListener("click", () => {
    sessionStorage.setItem("paused", isPaused() ? "no" : "yes");
    if (isPaused()) { source?.close(); source = null; } else { listen(); refresh(); }
    tell();
  });
  // A tab that nobody sees asks for nothing.
  document.addEventListener("visibilitychange", () => {
    if (isPaused()) return;
    if (document.hidden) { source?.close(); source = null; } else if (!source) { listen(); refresh(); }
  });
  tell();
  if (!isPaused() && !document.hidden) listen();
})();
