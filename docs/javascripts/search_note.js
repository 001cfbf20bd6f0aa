// A browser lets no page on the disk read the index of the search, so the theme hides its field. This says why.
if (location.protocol === "file:") {
  const note = document.createElement("small");
  note.className = "md-header__source"; // hidden on narrow screens
  note.style.width = "auto";
  note.textContent = "Search needs a server: python -m http.server -d build/site";
  document.querySelector(".md-header__inner").append(note);
}
