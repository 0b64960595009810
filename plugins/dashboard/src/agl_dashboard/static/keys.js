// Keys: each does what a link or a field of the page does.

export function keys() {
  document.addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    const typing = event.target.matches("input, select, textarea");
    if (event.key === "Escape" && typing) event.target.blur();
    if (typing) return;
    if (event.target.closest("[data-tokens]") && (event.key === "ArrowLeft" || event.key === "ArrowRight")) {
      step(event, event.target.closest("a.t"), event.key === "ArrowRight");
      return;
    }
    const act = ACTS[event.key];
    if (act) { event.preventDefault(); act(); }
  });
}

const ACTS = {
  "/": () => document.getElementById("search")?.focus(),
  "?": () => document.getElementById("keys").showModal(),
  g: () => { location.href = "/"; },
  u: () => { const trail = document.querySelectorAll(".trail a"); trail[trail.length - 1]?.click(); },
  "[": () => document.querySelector("a[rel=prev]")?.click(),
  "]": () => document.querySelector("a[rel=next]")?.click(),
  j: () => line(1),
  k: () => line(-1),
  t: () => document.getElementById("theme")?.click(),
};

function line(by) {
  const links = [...document.querySelectorAll("table.list tbody th a")];
  if (!links.length) return;
  const at = links.indexOf(document.activeElement);
  links[Math.min(links.length - 1, Math.max(0, at + by))].focus();
}

function step(event, token, forward) {
  const next = forward ? token?.nextElementSibling : token?.previousElementSibling;
  if (!next?.matches("a.t")) return;
  event.preventDefault();
  token.tabIndex = -1;
  next.tabIndex = 0;
  next.focus();
}
