// Words for the names in a state: the causes of package telemetry, and places.

const causes = {
  not_stored_by_request: ['not stored by request', 'An earlier request had these tokens and kv_store: false.'],
  still_being_written: ['still being written', 'The pages were not written yet when the prompt came.'],
  damaged: ['damaged', 'A page failed its check or could not be read. kvtier check looks at all of them.'],
  computing_was_quicker: ['computing was quicker', 'Pages were there, and reading them would have taken longer.'],
  evicted: ['evicted', 'The pages had been removed for the budget. A greater budget keeps more.'],
  tier_down: ['tier down', 'The place of the pages does not answer.'],
  image_changed: ['image changed', 'The prompt has another image at this place.'],
  broken_by_a_shift: ['broken by a shift', 'The context was full and its beginning was dropped, so later rows are not stored.'],
  token_differs: ['token differs', 'The prompt is like an earlier one up to this token. kvtier why shows the text.'],
  other_weights: ['other weights', 'The same tokens are stored for another model or adapter.'],
  other_cache_type: ['other cache type', 'The same tokens are stored with another OLLAMA_KV_CACHE_TYPE.'],
  other_build: ['other build', 'The same tokens are stored by another build, or from other devices.'],
  other_namespace: ['other namespace', 'The same tokens are stored in another namespace, which is kept apart.'],
  other_page_size: ['other page size', 'The same tokens are stored in pages of another size.'],
  never_seen: ['never seen', 'No earlier prompt began like this one.'],
};

const places = {
  slot: 'kept in the slot', ram: 'from memory', local: 'from the local tier', remote: 'from the remote tier',
  shifted: 'reused at another position', computed: 'computed',
};

function causeName(cause) { return Object.hasOwn(causes, cause) ? causes[cause][0] : plain(cause); }
function causeMeaning(cause) { return Object.hasOwn(causes, cause) ? causes[cause][1] : ''; }
