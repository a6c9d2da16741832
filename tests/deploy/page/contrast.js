// Returns the pieces of text on the page whose contrast with what lies behind
// them is below `arguments[0]`, as WCAG 2 computes it; and how many it measured.
const least = arguments[0];

function channel(value) {
  const part = value / 255;
  return part <= 0.03928 ? part / 12.92 : ((part + 0.055) / 1.055) ** 2.4;
}

function luminance([red, green, blue]) {
  return 0.2126 * channel(red) + 0.7152 * channel(green) + 0.0722 * channel(blue);
}

function parse(color) {
  const numbers = color.match(/[\d.]+/g).map(Number);
  return { rgb: numbers.slice(0, 3), alpha: numbers.length > 3 ? numbers[3] : 1 };
}

function behind(element) {
  for (let node = element; node; node = node.parentElement) {
    const { rgb, alpha } = parse(getComputedStyle(node).backgroundColor);
    if (alpha === 1) return rgb;
    if (alpha !== 0) throw new Error('half transparent: ' + node.outerHTML);
  }
  return [255, 255, 255];
}

function ratio(one, other) {
  const [dark, light] = [luminance(one), luminance(other)].sort((a, b) => a - b);
  return (light + 0.05) / (dark + 0.05);
}

const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
const failed = [];
let measured = 0;
while (walker.nextNode()) {
  const element = walker.currentNode.parentElement;
  if (!walker.currentNode.nodeValue.trim() || element.getClientRects().length === 0) continue;
  const style = getComputedStyle(element);
  if (Number(style.opacity) !== 1) failed.push('opacity: ' + element.outerHTML.slice(0, 200));
  const ink = element instanceof SVGElement ? style.fill : style.color;
  const found = ratio(parse(ink).rgb, behind(element));
  ++measured;
  if (found < least) {
    failed.push(found.toFixed(2) + ': ' + element.outerHTML.slice(0, 200));
  }
}
return { measured, failed };
