// What the page does besides swapping parts: ages that go on counting, and whether the stream is there.
(() => {
  "use strict";
  const say = (s) =>
    s < 1 ? "under 1 s" : s < 120 ? `${Math.floor(s)} s` : s < 7200 ? `${Math.floor(s / 60)} min`
      : s < 172800 ? `${(s / 3600).toFixed(1)} h` : `${(s / 86400).toFixed(1)} days`;
  const age = () => {
    const now = Date.now() / 1000;
    for (const e of document.querySelectorAll("time[data-ago]")) {
      const text = say(Math.max(0, now - Number(e.dataset.ago)));
      if (e.textContent !== text) e.textContent = text;
    }
  };
  setInterval(age, 1000);
  const link = document.getElementById("link");
  const is = (state, words) => {
    if (link && link.dataset.state !== state) {
      link.dataset.state = state;
      link.textContent = words;
    }
  };
  document.addEventListener("htmx:sseOpen", () => is("live", "live"));
  document.addEventListener("htmx:sseMessage", (e) => {
    is("live", "live");
    if (e.detail.type === "verdict") {
      const h1 = document.getElementById("head-verdict");
      const job = document.querySelector(".part-verdict .job");
      if (h1 && job) document.title = `${job.textContent.split(",")[0]}: ${h1.textContent.trim()}`;
    }
  });
  document.addEventListener("htmx:afterSwap", age);
  document.addEventListener("htmx:sseError", () => is("lost", "no connection, trying again"));
  document.addEventListener("DOMContentLoaded", age);
})();
