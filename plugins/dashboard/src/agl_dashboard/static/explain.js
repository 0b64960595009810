// A click on a token shows its explanation beside the tokens; the link is the same explanation as a page.

export function explain() {
  const aside = document.querySelector("aside.explanation");
  if (!aside) return;
  document.addEventListener("click", async (event) => {
    const token = event.target.closest("a.t");
    if (!token || event.ctrlKey || event.metaKey || event.shiftKey) return;
    event.preventDefault();
    document.querySelector("a.t.chosen")?.classList.remove("chosen");
    token.classList.add("chosen");
    aside.hidden = false;
    aside.textContent = "…";
    try {
      const answer = await fetch(token.href);
      const page = new DOMParser().parseFromString(await answer.text(), "text/html");
      const found = page.getElementById("explanation") ?? page.querySelector(".problem");
      if (!token.classList.contains("chosen")) return; // another was chosen meanwhile
      aside.replaceChildren(...[...(found?.childNodes ?? [])].map((node) => document.importNode(node, true)));
    } catch { aside.textContent = "The server does not answer."; }
  });
}
