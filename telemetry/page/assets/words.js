// Words for the names in a state. explanations, by cause, come from package telemetry/show, obstacles from telemetry/unstored.

const explanations = /*explanations*/;
const obstacles = /*obstacles*/; // means and remedy by cause

const places = {
  slot: 'kept in the slot', ram: 'from memory', local: 'from the local tier', remote: 'from the remote tier',
  shifted: 'reused at another position', computed: 'computed',
};

function causeName(cause) { return plain(cause).replaceAll('_', ' '); }
function causeMeaning(cause) {
  return Object.hasOwn(explanations, cause) ? explanations[cause] : 'A newer program gave this cause.';
}
