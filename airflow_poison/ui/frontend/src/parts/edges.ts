/** Edges that can be seen in both modes: the theme's own are nearly the colour of a dark ground. */
export const EDGES = {
  _light: { "--chakra-colors-border": "var(--chakra-colors-gray-300)" },
  _dark: { "--chakra-colors-border": "var(--chakra-colors-gray-600)", "& button": { borderColor: "gray.600" } },
} as const;
