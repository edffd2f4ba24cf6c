import { useMediaQuery } from "@chakra-ui/react";

/** Whether the window is too narrow for tables, as a telephone is. */
export function useNarrow(): boolean {
  const [narrow] = useMediaQuery(["(max-width: 47.99em)"], { ssr: false });
  return Boolean(narrow);
}
