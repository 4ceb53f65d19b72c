// Scales and their ticks: pure functions.

// How far back the charts can reach; the names are those of /history.
export const SPANS = {
  "10m": { seconds: 600, phrase: "the last 10 minutes" },
  "2h": { seconds: 7200, phrase: "the last 2 hours" },
  "24h": { seconds: 86_400, phrase: "the last 24 hours" },
};

export function linear([from, to], [low, high]) {
  const factor = to === from ? 0 : (high - low) / (to - from);
  return (value) => low + (value - from) * factor;
}

// Returns a range that holds the values, between two round numbers, and the round numbers in it as ticks. The range is
// at least `least` times as wide as the greatest value, so that noise does not look like a decline.
export function rounded(values, { zero = false, about = 3, least = 0 } = {}) {
  let low = Infinity;
  let high = -Infinity;
  for (const value of values) {
    if (value == null) continue;
    if (value < low) low = value;
    if (value > high) high = value;
  }
  if (low > high) return { range: [0, 1], ticks: [] };
  if (zero) low = Math.min(0, low);
  if (high - low < 1e-9) {
    const room = Math.max(Math.abs(low) * 0.01, 0.005);
    [low, high] = zero ? [low, low + 1] : [low - room, high + room];
  }
  [low, high] = widened(low, high, least);
  const step = roundStep((high - low) / about);
  const from = Math.floor(low / step + 1e-9) * step;
  const to = Math.ceil(high / step - 1e-9) * step;
  const ticks = [];
  for (let i = 0; from + i * step <= to + step * 1e-6; i += 1) ticks.push(from + i * step);
  return { range: [from, to], ticks };
}

function widened(low, high, least) {
  const lacking = least * Math.max(Math.abs(low), Math.abs(high)) - (high - low);
  if (lacking <= 0) return [low, high];
  // What is at most 1 is mostly a share: above 1 there is nothing to show.
  const above = high <= 1 ? Math.min(lacking / 2, 1 - high) : lacking / 2;
  return [low - (lacking - above), high + above];
}

function roundStep(rough) {
  const power = 10 ** Math.floor(Math.log10(rough));
  const digit = rough / power;
  return (digit <= 1 ? 1 : digit <= 2 ? 2 : digit <= 5 ? 5 : 10) * power;
}

const STEPS = [5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 10_800, 14_400, 21_600];

// Returns ticks at round local times, at most `most` of them, and their step in seconds.
export function timeTicks([from, to], most) {
  const step = STEPS.find((one) => (to - from) / one <= most) ?? STEPS.at(-1);
  const shift = new Date(to * 1000).getTimezoneOffset() * 60;
  const ticks = [];
  for (let at = Math.ceil((from - shift) / step) * step + shift; at <= to; at += step) ticks.push(at);
  return { ticks, step };
}
