package telemetry

import (
	"slices"
	"time"
)

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
