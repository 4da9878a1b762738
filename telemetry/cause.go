package telemetry

// Cause is why a prompt computed tokens that it might have restored. The list is closed.
type Cause string

// Causes. Package why says in which order they are looked for.
const (
	CausePrivate   Cause = "not_stored_by_request" // an earlier request with kv_store: false had these tokens
	CauseWriting   Cause = "still_being_written"
	CauseDamaged   Cause = "damaged" // a page was set aside, or could not be read
	CauseQuicker   Cause = "computing_was_quicker"
	CauseEvicted   Cause = "evicted"
	CauseTierDown  Cause = "tier_down"
	CauseImage     Cause = "image_changed"
	CauseShift     Cause = "broken_by_a_shift"
	CauseDiffers   Cause = "token_differs" // from the most similar recent prompt
	CauseWeights   Cause = "other_weights" // the same tokens are stored for other weights or adapters
	CauseType      Cause = "other_cache_type"
	CauseBuild     Cause = "other_build" // of the engine, or on other devices
	CauseNamespace Cause = "other_namespace"
	CausePageSize  Cause = "other_page_size"
	CauseNeverSeen Cause = "never_seen"
)

// Causes lists every cause.
var Causes = []Cause{
	CausePrivate, CauseWriting, CauseDamaged, CauseQuicker, CauseEvicted, CauseTierDown, CauseImage, CauseShift,
	CauseDiffers, CauseWeights, CauseType, CauseBuild, CauseNamespace, CausePageSize, CauseNeverSeen,
}
