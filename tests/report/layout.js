// Return a list of layout defects of the page, which is empty if there are none.
(() => {
  const wrong = [];
  const root = document.documentElement;
  const said = (element) => `<${element.tagName.toLowerCase()}> ${element.textContent.trim().slice(0, 40)}`;
  const meet = (a, b) =>
    Math.min(a.right, b.right) - Math.max(a.left, b.left) > 1.5 &&
    Math.min(a.bottom, b.bottom) - Math.max(a.top, b.top) > 1.5;
  if (root.scrollWidth > root.clientWidth) wrong.push(`${root.scrollWidth} px in a window of ${root.clientWidth}`);

  for (const svg of document.querySelectorAll("svg")) {
    const frame = svg.getBoundingClientRect();
    const scale = frame.width / svg.viewBox.baseVal.width;
    const texts = [...svg.querySelectorAll("text")].map((text) => [text, text.getBoundingClientRect()]);
    for (const [text, box] of texts) {
      const size = parseFloat(getComputedStyle(text).fontSize) * scale;
      if (size < 9) wrong.push(`${said(text)}: ${size} px`);
      if (box.left < frame.left - 1 || box.right > frame.right + 1 || box.top < frame.top - 1 || box.bottom > frame.bottom + 1)
        wrong.push(`${said(text)}: outside its plot`);
    }
    texts.forEach(([text, box], number) => {
      for (const [other, its] of texts.slice(number + 1))
        if (meet(box, its)) wrong.push(`${said(text)} over ${said(other)} in ${svg.getAttribute("aria-label")}`);
    });
  }

  const lines = [];
  const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  for (let node = walker.nextNode(); node; node = walker.nextNode()) {
    const parent = node.parentElement;
    if (!node.textContent.trim() || parent.closest("svg")) continue;
    if (parseFloat(getComputedStyle(parent).fontSize) < 10) wrong.push(`${said(parent)}: too small`);
    const range = document.createRange();
    range.selectNodeContents(node);
    const held = parent.closest(".scroll, pre");
    for (const box of range.getClientRects()) {
      if (!held && (box.right > root.clientWidth + 1 || box.left < -1)) wrong.push(`${said(parent)}: cut off`);
      lines.push([parent, box, held]);
    }
  }
  lines.sort((a, b) => a[1].top - b[1].top);
  lines.forEach(([parent, box, held], number) => {
    for (let at = number + 1; at < lines.length && lines[at][1].top < box.bottom; at++)
      if (held === lines[at][2] && meet(box, lines[at][1])) wrong.push(`${said(parent)} over ${said(lines[at][0])}`);
  });
  return wrong;
})()
