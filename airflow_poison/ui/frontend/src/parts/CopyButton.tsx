import { Button } from "@chakra-ui/react";
import { useState } from "react";

interface Props {
  readonly text: string;
  readonly children?: string;
}

/** Copy a text, and say whether it worked. */
export function CopyButton({ text, children = "Copy" }: Props) {
  const [said, setSaid] = useState<string | null>(null);
  const copy = async () => {
    try {
      await navigator.clipboard.writeText(text);
      setSaid("Copied");
    } catch {
      setSaid("Not copied: the browser does not allow it");
    }
    setTimeout(() => {
      setSaid(null);
    }, 3000);
  };
  return (
    <Button size="xs" variant="outline" aria-live="polite" onClick={() => void copy()}>
      {said ?? children}
    </Button>
  );
}
