export const DEFAULT_CONNECTION = "poison_default";
