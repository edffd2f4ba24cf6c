import { chakra } from "@chakra-ui/react";

import { count } from "../lib/words";

const [WIDTH, HEIGHT] = [96, 24];

interface Props {
  readonly label: string;
  readonly values: readonly number[];
  readonly color?: string;
}

/** How a number has gone, as a line; told as its first, highest and last value to those who do not see it. */
export function Sparkline({ label, values, color = "fg.muted" }: Props) {
  const highest = Math.max(...values, 0);
  const step = WIDTH / Math.max(1, values.length - 1);
  const points = values.map((value, place) => `${(place * step).toFixed(1)},${(HEIGHT - 2 - (highest ? value / highest : 0) * (HEIGHT - 4)).toFixed(1)}`);
  const told = values.length ? `${label}: from ${count(values[0] ?? 0)} to ${count(values.at(-1) ?? 0)}, at most ${count(highest)}` : `${label}: nothing recorded`;
  return (
    <chakra.svg width={`${WIDTH}px`} height={`${HEIGHT}px`} viewBox={`0 0 ${WIDTH} ${HEIGHT}`} role="img" aria-label={told} color={color} display="inline-block">
      <title>{told}</title>
      <polyline points={points.join(" ")} fill="none" stroke="currentColor" strokeWidth="1.5" />
    </chakra.svg>
  );
}
