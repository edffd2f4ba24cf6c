import { Box, DataList } from "@chakra-ui/react";
import { isValidElement, type ReactNode } from "react";

import { plain } from "../lib/words";

import { Long } from "./Long";

/** Names and values. */
export function Facts({ label, facts }: { readonly label: string; readonly facts: Readonly<Record<string, ReactNode | object>> }) {
  return (
    <DataList.Root orientation="horizontal" size="sm" gap="1.5" borderWidth="1px" borderRadius="md" padding="3" aria-label={label}>
      {Object.entries(facts).map(([name, value]) => (
        <DataList.Item key={name} alignItems="flex-start">
          <DataList.ItemLabel flex="none" width={{ base: "7rem", md: "12rem" }} overflowWrap="anywhere">
            <Long most={80}>{name.replaceAll("_", " ")}</Long>
          </DataList.ItemLabel>
          <DataList.ItemValue overflowWrap="anywhere" minWidth="0" whiteSpace="pre-wrap">
            {isValidElement(value) ? <Box minWidth="0">{value}</Box> : <Long>{plain(value)}</Long>}
          </DataList.ItemValue>
        </DataList.Item>
      ))}
    </DataList.Root>
  );
}
