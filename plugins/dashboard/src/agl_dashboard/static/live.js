// Follow the store: on each change the page is asked for again, and its parts ([data-part]) that differ are
// replaced. Focus and open details stay where they were.

const PAUSE = 700; // milliseconds between two refreshes, at least

export function follow(address, sign, refreshed) {
  if (!address || !sign) return;
  const source = new EventSource(address);
  let wanted = false, busy = false;

  async function refresh() {
    if (busy) { wanted = true; return; }
    busy = true; wanted = false;
    try {
      const answer = await fetch(location.href, { headers: { Accept: "text/html" } });
      if (answer.ok) replace(new DOMParser().parseFromString(await answer.text(), "text/html"), refreshed);
    } catch { /* the server is gone; EventSource says so below and tries again */ }
    await new Promise((done) => setTimeout(done, PAUSE));
    busy = false;
    if (wanted || document.querySelector("main[data-again]")) refresh();
  }

  if (document.querySelector("main[data-again]")) setTimeout(refresh, PAUSE); // an index is being built

  source.addEventListener("state", () => { sign.hidden = false; sign.textContent = "live"; sign.classList.remove("lost"); });
  source.addEventListener("changed", refresh);
  source.addEventListener("error", () => { sign.hidden = false; sign.textContent = "not connected"; sign.classList.add("lost"); });
}

function replace(fresh, refreshed) {
  if (!fresh.querySelector("main[data-again]")) document.querySelector("main").removeAttribute("data-again");
  const active = document.activeElement;
  for (const part of document.querySelectorAll("[data-part]")) {
    const other = fresh.querySelector(`[data-part="${CSS.escape(part.dataset.part)}"]`);
    if (!other || other.innerHTML === part.dataset.seen) continue;
    const seen = other.innerHTML;
    if (part.contains(active) && active.matches("input, select, textarea")) continue;
    const place = active?.getAttribute?.("href");
    const held = part.contains(active);
    part.replaceChildren(...[...other.childNodes].map((node) => document.importNode(node, true)));
    part.dataset.seen = seen;
    if (held && place) part.querySelector(`a[href="${CSS.escape(place)}"]`)?.focus({ preventScroll: true });
    refreshed(part);
  }
}
