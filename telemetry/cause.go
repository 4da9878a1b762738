package telemetry

import "slices"

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

// Causes explains every cause. docs/kvtier.md has the same table.
var Causes = []Reason[Cause]{
	{CausePrivate, "an earlier request had these tokens and was not stored, as its kv_store: false asked",
		"Leave kv_store out of requests whose text may be kept."},
	{CauseWriting, "the pages were still being written",
		"None is needed: the pages are found from now on. If this happens often, the disk is slow; kvtier bench measures it."},
	{CauseDamaged, "a page was damaged or could not be read, and was set aside",
		"Run kvtier check; several damaged files in a week point to a disk, a cable or memory."},
	{CauseQuicker, "computing was quicker than reading, by the measured speeds of both",
		"None is needed. A faster disk, or OLLAMA_KV_TIER_RAM_GB, makes reading quicker; kvtier bench measures the disk."},
	{CauseEvicted, "the pages are not stored any more",
		"Raise OLLAMA_KV_TIER_LOCAL_GB, or add OLLAMA_KV_TIER_REMOTE, if room was needed; kvtier stat shows how full the tiers are."},
	{CauseTierDown, "a tier with the pages could not be used",
		"Mount the directory, or bring its server back; of a remote directory the server's log has a line with \"kv tier is not usable\". A local disk that hangs or is slow shows in dmesg."},
	{CauseImage, "an image is another one than before, and the text behind it depends on it",
		"Put images that change behind text and images that stay."},
	{CauseShift, "the context was shifted, and text behind the kept part is not stored from then on",
		"Raise num_ctx, so that the conversation fits; OLLAMA_KV_TIER_REUSE=shifted reuses such text approximately."},
	{CauseDiffers, "this token differs from that of the most similar recent prompt",
		"Move text that changes, such as the time, behind text that stays, best to the end of the prompt."},
	{CauseWeights, "the same tokens are stored for other weights or adapters",
		"None: K/V belongs to one model file. Keep to one quantization of a model."},
	{CauseType, "the same tokens are stored with another type of KV cache",
		"Give all servers the same OLLAMA_KV_CACHE_TYPE and OLLAMA_FLASH_ATTENTION."},
	{CauseBuild, "the same tokens are stored by another build of the engine, or for other devices",
		"Install the same build on all machines. After an upgrade, each conversation is computed once."},
	{CauseNamespace, "the same tokens are stored in another namespace",
		"Give servers of the same people the same OLLAMA_KV_TIER_NAMESPACE. Keep it different for others."},
	{CausePageSize, "the same tokens are stored in pages of another size",
		"Give all servers the same OLLAMA_KV_TIER_PAGE_TOKENS."},
	{CauseNeverSeen, "these tokens were never seen before",
		"None is needed: new text is computed once, and is stored now."},
}

// Explain explains a cause.
func (c Cause) Explain() Reason[Cause] { return explain(Causes, c) }

// Reason is the meaning of a cause or an obstacle, as a clause, and the next step of the user, as a sentence.
type Reason[C ~string] struct {
	Cause  C      `json:"cause"`
	Means  string `json:"means"`
	Remedy string `json:"remedy"`
}

// explain finds a reason. One that a newer program reports has an explanation, too.
func explain[C ~string](all []Reason[C], c C) Reason[C] {
	i := slices.IndexFunc(all, func(r Reason[C]) bool { return r.Cause == c })
	if i < 0 {
		return Reason[C]{c, "a newer program gave this cause", "Update kvtier to the version of the server."}
	}
	return all[i]
}
