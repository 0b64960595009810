// Light or dark: the system's choice unless a person makes one, which a cookie keeps for the next page.

export function theme(button) {
  const root = document.documentElement;
  button?.addEventListener("click", () => {
    const dark = root.dataset.theme
      ? root.dataset.theme === "dark"
      : matchMedia("(prefers-color-scheme: dark)").matches;
    root.dataset.theme = dark ? "light" : "dark";
    document.cookie = `agl_theme=${root.dataset.theme}; path=/; max-age=31536000; samesite=strict`;
  });
}
