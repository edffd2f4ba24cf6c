import { Button, HStack, Text } from "@chakra-ui/react";

import { count } from "../lib/words";

interface Props {
  readonly label: string;
  readonly offset: number;
  readonly size: number;
  readonly total: number;
  readonly onMove: (offset: number) => void;
}

/** Which rows of all are shown, and the way to those before and behind them. */
export function Pager({ label, offset, size, total, onMove }: Props) {
  if (total <= size && offset === 0) return null;
  const last = Math.min(total, offset + size);
  const steps = [
    { name: "First", to: 0, off: offset === 0 },
    { name: "Previous", to: Math.max(0, offset - size), off: offset === 0 },
    { name: "Next", to: offset + size, off: last >= total },
    { name: "Last", to: Math.max(0, Math.floor((total - 1) / size) * size), off: last >= total },
  ];
  return (
    <HStack as="nav" aria-label={`Pages of ${label}`} wrap="wrap" marginTop="3">
      <Text fontSize="sm" color="fg.muted" role="status">
        {total ? `${count(Math.min(offset + 1, total))}–${count(last)} of ${count(total)}` : "none"}
      </Text>
      {steps.map(({ name, to, off }) => (
        <Button
          key={name}
          size="xs"
          variant="outline"
          disabled={off}
          onClick={() => {
            onMove(to);
          }}
        >
          {name}
        </Button>
      ))}
    </HStack>
  );
}
