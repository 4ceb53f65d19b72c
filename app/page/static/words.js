// Numbers and times as text: pure functions.

const whole = new Intl.NumberFormat("en", { maximumFractionDigits: 0 });
const compact = new Intl.NumberFormat("en", { notation: "compact", maximumSignificantDigits: 3 });
const NONE = "–";
const BEYOND = 1e15; // from here on the compact form writes all digits

export const count = (n) => (n == null ? NONE : whole.format(n));

export const brief = (n) => (Math.abs(n) < 10_000 ? String(Number(n.toPrecision(3))) : large(n));

const large = (n) => (Math.abs(n) < BEYOND ? compact.format(n) : n.toExponential(2));

export function rate(n) {
  if (n == null) return NONE;
  return n >= 10 || n === 0 ? whole.format(n) : n.toPrecision(2);
}

export function metric(n) {
  if (n == null) return NONE;
  if (n !== 0 && Math.abs(n) < 0.001) return String(Number(n.toPrecision(2)));
  return Math.abs(n) >= 1000 ? large(n) : Math.abs(n) >= 10 ? n.toFixed(1) : n.toFixed(3);
}

export function behind(s) {
  if (s == null) return NONE;
  if (s < 0.05) return "0 s";
  return s < 10 ? `${s.toFixed(1)} s` : span(s);
}

export function span(s) {
  if (s < 1) return "under 1 s";
  if (s < 120) return `${Math.round(s)} s`;
  if (s < 7200) return `${Math.round(s / 60)} min`;
  return s < 172_800 ? `${Math.round(s / 3600)} h` : `${Math.round(s / 86_400)} days`;
}

const UNITS = ["bytes", "KB", "MB", "GB", "TB"];

export function size(bytes) {
  const power = Math.min(UNITS.length - 1, Math.floor(Math.log10(Math.max(1, bytes)) / 3));
  const n = bytes / 1000 ** power;
  return `${n < 10 && power > 0 ? n.toFixed(1) : whole.format(n)} ${UNITS[power]}`;
}

export const percent = (share) => `${Math.round(share * 100)} %`;

const pad = (n) => String(n).padStart(2, "0");

export function clock(seconds, { fine = true } = {}) {
  const d = new Date(seconds * 1000);
  return `${pad(d.getHours())}:${pad(d.getMinutes())}${fine ? `:${pad(d.getSeconds())}` : ""}`;
}

export function moment(seconds, now) {
  const day = new Date(seconds * 1000);
  const same = day.toDateString() === new Date(now * 1000).toDateString();
  const date = `${day.getFullYear()}-${pad(day.getMonth() + 1)}-${pad(day.getDate())} `;
  return `${same ? "" : date}${clock(seconds)}`;
}

export const parsed = (iso) => Date.parse(iso) / 1000;

export const plain = (word) => word.replaceAll("_", " ");

export const capital = (text) => text.charAt(0).toUpperCase() + text.slice(1);
