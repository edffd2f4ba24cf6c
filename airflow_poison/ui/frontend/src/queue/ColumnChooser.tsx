import { Button, Menu } from "@chakra-ui/react";

import type { Column } from "../parts/column";

import { ALWAYS_SHOWN, SHOWN_AT_FIRST } from "./messageColumns";

interface Props<T> {
  readonly columns: readonly Column<T>[];
  readonly shown: readonly string[];
  readonly onChoose: (names: readonly string[]) => void;
}

/** Which columns are shown. */
export function ColumnChooser<T>({ columns, shown, onChoose }: Props<T>) {
  return (
    <Menu.Root closeOnSelect={false}>
      <Menu.Trigger asChild>
        <Button size="xs" variant="outline">
          Columns
        </Button>
      </Menu.Trigger>
        <Menu.Positioner>
          <Menu.Content aria-label="Columns">
            {columns
              .filter(({ key }) => key !== ALWAYS_SHOWN)
              .map(({ key, title }) => (
                <Menu.CheckboxItem
                  key={key}
                  value={key}
                  checked={shown.includes(key)}
                  onCheckedChange={(checked) => {
                    onChoose(checked ? [...shown, key] : shown.filter((name) => name !== key));
                  }}
                >
                  <Menu.ItemIndicator />
                  {title}
                </Menu.CheckboxItem>
              ))}
            <Menu.Separator />
            <Menu.Item
              value="as at first"
              onClick={() => {
                onChoose(SHOWN_AT_FIRST);
              }}
            >
              As at first
            </Menu.Item>
          </Menu.Content>
        </Menu.Positioner>
    </Menu.Root>
  );
}
