"""What every page must pass, asked in the page itself."""

from urllib.parse import urlsplit

DRAWN = """[...document.querySelectorAll('.plot')].map(p => [p.id, p.querySelectorAll('.main-svg').length,
  p.querySelectorAll('.trace, .points path, .hm, .point').length])"""

CONTRAST = """(() => {
  const canvas = document.createElement('canvas').getContext('2d', {willReadFrequently: true});
  const rgba = (text) => { canvas.clearRect(0, 0, 1, 1); canvas.fillStyle = text; canvas.fillRect(0, 0, 1, 1);
    const d = canvas.getImageData(0, 0, 1, 1).data; return [d[0], d[1], d[2], d[3] / 255]; };
  const over = (top, under) => [0, 1, 2].map(i => top[i] * top[3] + under[i] * (1 - top[3])).concat(1);
  const back = (e) => { const layers = [];
    for (; e; e = e.parentElement) { const c = rgba(getComputedStyle(e).backgroundColor); layers.push(c); if (c[3] === 1) break; }
    return layers.reverse().reduce((under, top) => over(top, under), [255, 255, 255, 1]); };
  const light = (c) => { const [r, g, b] = c.slice(0, 3).map(v => { v /= 255; return v <= .04045 ? v / 12.92 : ((v + .055) / 1.055) ** 2.4; });
    return .2126 * r + .7152 * g + .0722 * b; };
  const ratio = (a, b) => { const [x, y] = [light(a), light(b)].sort((p, q) => q - p); return (x + .05) / (y + .05); };
  const found = [];
  for (const fold of document.querySelectorAll('details')) fold.open = true;
  const walk = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  while (walk.nextNode()) {
    const node = walk.currentNode, e = node.parentElement;
    if (!node.textContent.trim() || e.closest('script, style, noscript, option') || !e.getClientRects().length) continue;
    const style = getComputedStyle(e);
    const color = rgba(e.closest('svg') ? style.fill : style.color);
    const large = parseFloat(style.fontSize) >= 24 || (parseFloat(style.fontSize) >= 18.66 && +style.fontWeight >= 700);
    const r = ratio(over(color, back(e)), back(e));
    found.push([r / (large ? 3 : 4.5), r, node.textContent.trim().slice(0, 40)]);
  }
  for (const fold of document.querySelectorAll('details')) fold.open = false;
  found.sort((a, b) => a[0] - b[0]);
  return found.slice(0, 3).concat([[found.length, 0, 'texts']]);
})()"""

NAMELESS = """[...document.querySelectorAll('a, button, input, select, summary, [tabindex="0"]')].filter(e => {
  const label = e.getAttribute('aria-label') || e.textContent.trim() || e.closest('label')?.textContent.trim();
  return !label && !e.hidden; }).map(e => e.outerHTML.slice(0, 100))"""


def clean(page, own: str = "") -> None:
    """Nothing was logged, and no request left the machine (or the server that the page came from)."""
    page.run("0")  # what the page has said so far has arrived by the time of the answer
    assert page.errors == []
    for address in page.requests:
        parts = urlsplit(address)
        assert parts.scheme in ("file", "data", "blob") or (own and f"{parts.scheme}://{parts.netloc}" == own), address


def drawn(page, count: int | None = None) -> int:
    """Every plot of the page holds a drawing with something in it."""
    page.until("[...document.querySelectorAll('.plot')].every(p => p.querySelector('.main-svg'))")
    plots = page.run(DRAWN)
    assert plots and all(svgs >= 1 and marks >= 1 for _, svgs, marks in plots), plots
    assert count is None or len(plots) == count
    return len(plots)


def first_paint(page) -> float:
    """Milliseconds until the page showed something, the quickest of some: other programs may hold the machine."""
    found = []
    while len(found) < 5 and min(found, default=1000.0) >= 1000:
        if found:
            page.send("Page.reload")
            page.until("document.readyState === 'complete'")
        found.append(page.until("performance.getEntriesByName('first-contentful-paint')[0]?.startTime"))
    return min(found)


def readable(page) -> float:
    """WCAG AA: every text against what lies behind it, 4.5 to 1, large text 3 to 1; returns the lowest ratio."""
    *worst, (count, _, _) = page.run(CONTRAST)
    assert count > 20 and worst[0][0] >= 1, worst
    return min(ratio for _, ratio, _ in worst)


def usable(page) -> None:
    """Whatever can be reached by keyboard says what it is; nothing sticks out of the window."""
    assert page.run(NAMELESS) == []
    assert page.run("document.documentElement.lang") == "en" and page.run("document.querySelectorAll('h1').length") == 1
    wide = """[...document.querySelectorAll('body *')].filter(e => e.getBoundingClientRect().right > innerWidth + 1
      && !e.closest('.scroll, .plot, pre, .unseen, .skip, thead')).map(e => e.outerHTML.slice(0, 80))"""
    assert page.run(wide) == []
    assert page.run("document.documentElement.scrollWidth <= innerWidth"), page.run(
        "document.documentElement.scrollWidth"
    )
