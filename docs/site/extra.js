// Code and tables that scroll sideways can be scrolled with the keyboard.
function makeScrollable() {
  for (const part of document.querySelectorAll(".md-typeset__scrollwrap, .md-typeset pre > code")) {
    if (part.scrollWidth > part.clientWidth) part.tabIndex = 0;
  }
}
window.addEventListener("load", makeScrollable);
window.addEventListener("resize", makeScrollable);
