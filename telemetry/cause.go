package telemetry

import (
	"slices"
	"time"
)

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

// Obstacle is why K/V that should have been stored is not, although tiering is on. The list is closed.
type Obstacle string

// Obstacles.
const (
	ObstacleRunner    Obstacle = "llama_runner" // the model runs on the llama.cpp runner of a patched release
	ObstacleModel     Obstacle = "unsupported_model"
	ObstacleEmbedding Obstacle = "embeddings_only"
	ObstacleOption    Obstacle = "server_option"     // of llama-server, or a request that changes the model
	ObstacleSlotFile  Obstacle = "unknown_slot_file" // of a llama-server that is too new or too old
	ObstacleSlot      Obstacle = "slot_not_saved"    // by llama-server
	ObstacleEngine    Obstacle = "engine_silent"     // llama-server does not answer, or has died again and again
	ObstacleLayout    Obstacle = "unknown_layout"    // of the engine's cache
	ObstacleCopy      Obstacle = "copy_failed"       // of rows out of the engine's cache
	ObstacleSetting   Obstacle = "bad_setting"
	ObstacleRoot      Obstacle = "unsafe_root"
	ObstacleDenied    Obstacle = "permission_denied"
	ObstacleReadOnly  Obstacle = "read_only"
	ObstacleFull      Obstacle = "disk_full"
	ObstacleInodes    Obstacle = "no_inodes"
	ObstacleName      Obstacle = "name_too_long"
	ObstacleBudget    Obstacle = "budget_too_small"
	ObstacleWriteCap  Obstacle = "write_cap"
	ObstacleSlow      Obstacle = "disk_slow"
	ObstacleHung      Obstacle = "disk_hangs"
	ObstacleOther     Obstacle = "other"
)

// Obstacles explains every obstacle. docs/operations.md has the same table.
var Obstacles = []Reason[Obstacle]{
	{ObstacleRunner, "the model runs on the llama.cpp runner, which is not tiered",
		"Set OLLAMA_NEW_ENGINE=1 for the server: Ollama's own engine runs llama and qwen2 models."},
	{ObstacleModel, "the model's architecture or files are not supported",
		"None: the model runs as in stock Ollama. docs/models.md lists the models that are tiered."},
	{ObstacleEmbedding, "the model makes embeddings alone, so it keeps no conversation",
		"None is needed."},
	{ObstacleOption, "an option of llama-server, or a request, makes rows that pages cannot hold",
		"Leave out the option that the reason names; docs/llama-server.md lists those that keep slots from being stored."},
	{ObstacleSlotFile, "this build does not know the slot files of this llama-server",
		"Update kvtier, or use a llama-server that docs/llama-server.md names, and report the version of llama-server."},
	{ObstacleSlot, "llama-server did not save its slots, again and again",
		"Look at the reason, and restart the server; report it if it stays."},
	{ObstacleEngine, "llama-server does not answer, or has died again and again",
		"Restart the server; look at its log for the reason."},
	{ObstacleLayout, "the engine's cache does not have the layers that the model names",
		"Report the model: its prompts are computed as in stock Ollama."},
	{ObstacleCopy, "rows could not be copied out of the engine's cache",
		"Load the model again; report the reason if it comes back."},
	{ObstacleSetting, "a setting cannot be used",
		"Correct the variable that the reason names, and restart the server."},
	{ObstacleRoot, "the directory of pages is unsafe or cannot be made",
		"Set OLLAMA_KV_TIER_LOCAL to a directory that belongs to the server's user, with mode 0700, on a local disk."},
	{ObstacleDenied, "the server's user may not write to the directory of pages",
		"Give the directory to the server's user, with chown -R, or set OLLAMA_KV_TIER_LOCAL to another one."},
	{ObstacleReadOnly, "the filesystem of the directory is read-only",
		"Mount it for writing; a disk that failed becomes read-only, which dmesg tells."},
	{ObstacleFull, "the disk or a quota is full",
		"Free space, lower OLLAMA_KV_TIER_LOCAL_GB, or set OLLAMA_KV_TIER_LOCAL to another disk; df -h shows the space."},
	{ObstacleInodes, "the filesystem makes no more files although bytes are free (it is out of inodes, or a quota is reached), so old pages leave before the budget is reached",
		"Look at df -i; remove small files of others, set a larger OLLAMA_KV_TIER_PAGE_TOKENS, or use a filesystem with more inodes."},
	{ObstacleName, "the filesystem refuses the names of pages as too long",
		"Set OLLAMA_KV_TIER_LOCAL to a shorter path, on a filesystem that allows names of 143 bytes."},
	{ObstacleBudget, "the budget has no room for a page",
		"Raise OLLAMA_KV_TIER_LOCAL_GB: a page of 256 tokens takes 256 times the bytes of a token that the server logs."},
	{ObstacleWriteCap, "the limit of bytes written in a day is reached",
		"Raise OLLAMA_KV_TIER_WRITE_GB_PER_DAY, or wait for the next day (UTC)."},
	{ObstacleSlow, "pages are computed more quickly than the disk takes them",
		"Use a faster disk; kvtier bench measures it."},
	{ObstacleHung, "the disk does not answer",
		"Look at the disk or the mount: dmesg, findmnt."},
	{ObstacleOther, "storing fails for another reason",
		"Look at the reason; kvtier doctor looks at the machine."},
}

// Known reports whether this program knows an obstacle.
func (o Obstacle) Known() bool {
	return slices.ContainsFunc(Obstacles, func(r Reason[Obstacle]) bool { return r.Cause == o })
}

// Explain explains an obstacle.
func (o Obstacle) Explain() Reason[Obstacle] { return explain(Obstacles, o) }

// Unstored says that K/V of a process's model is not stored now.
type Unstored struct {
	Cause Obstacle `json:"cause"`
	// Detail is the error, of at most NameBytesMax bytes; it is never text of a prompt.
	Detail string    `json:"detail,omitempty"`
	Since  time.Time `json:"since"`
}
