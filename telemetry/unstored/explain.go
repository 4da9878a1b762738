package unstored

import (
	"slices"

	"github.com/kvtier/kvtier/telemetry"
)

// Explanation is the meaning of an obstacle, as a clause, and the next step of the user, as a
// sentence.
type Explanation struct {
	Cause  telemetry.Obstacle `json:"cause"`
	Means  string             `json:"means"`
	Remedy string             `json:"remedy"`
}

// explanations has every obstacle, in the order of telemetry.Obstacles. docs/operations.md has the
// same table.
var explanations = []Explanation{
	{telemetry.ObstacleRunner,
		"the model runs on the llama.cpp runner, which is not tiered",
		"Set OLLAMA_NEW_ENGINE=1 for the server: Ollama's own engine runs llama and qwen2 models."},
	{telemetry.ObstacleModel,
		"the model's architecture or files are not supported",
		"None: the model runs as in stock Ollama. docs/models.md lists the models that are tiered."},
	{telemetry.ObstacleEmbedding,
		"the model makes embeddings alone, so it keeps no conversation",
		"None is needed."},
	{telemetry.ObstacleOption,
		"an option of llama-server, or a request, makes rows that pages cannot hold",
		"Leave out the option that the reason names; docs/llama-server.md lists those that keep slots from being stored."},
	{telemetry.ObstacleSlotFile,
		"this build does not know the slot files of this llama-server",
		"Update kvtier, or use a llama-server that docs/llama-server.md names, and report the version of llama-server."},
	{telemetry.ObstacleSlot,
		"llama-server did not save its slots, again and again",
		"Look at the reason, and restart the server; report it if it stays."},
	{telemetry.ObstacleEngine,
		"llama-server does not answer, or has died again and again",
		"Restart the server; look at its log for the reason."},
	{telemetry.ObstacleLayout,
		"the engine's cache does not have the layers that the model names",
		"Report the model: its prompts are computed as in stock Ollama."},
	{telemetry.ObstacleCopy,
		"rows could not be copied out of the engine's cache",
		"Load the model again; report the reason if it comes back."},
	{telemetry.ObstacleSetting,
		"a setting cannot be used",
		"Correct the variable that the reason names, and restart the server."},
	{telemetry.ObstacleRoot,
		"the directory of pages is unsafe or cannot be made",
		"Set OLLAMA_KV_TIER_LOCAL to a directory that belongs to the server's user, with mode 0700, on a local disk."},
	{telemetry.ObstacleDenied,
		"the server's user may not write to the directory of pages",
		"Give the directory to the server's user, with chown -R, or set OLLAMA_KV_TIER_LOCAL to another one."},
	{telemetry.ObstacleReadOnly,
		"the filesystem of the directory is read-only",
		"Mount it for writing; a disk that failed becomes read-only, which dmesg tells."},
	{telemetry.ObstacleFull,
		"the disk or a quota is full",
		"Free space, lower OLLAMA_KV_TIER_LOCAL_GB, or set OLLAMA_KV_TIER_LOCAL to another disk; df -h shows the space."},
	{telemetry.ObstacleInodes,
		"the filesystem makes no more files although bytes are free (it is out of inodes, or a quota is reached), so old pages leave before the budget is reached",
		"Look at df -i; remove small files of others, set a larger OLLAMA_KV_TIER_PAGE_TOKENS, or use a filesystem with more inodes."},
	{telemetry.ObstacleName,
		"the filesystem refuses the names of pages as too long",
		"Set OLLAMA_KV_TIER_LOCAL to a shorter path, on a filesystem that allows names of 143 bytes."},
	{telemetry.ObstacleBudget,
		"the budget has no room for a page",
		"Raise OLLAMA_KV_TIER_LOCAL_GB: a page of 256 tokens takes 256 times the bytes of a token that the server logs."},
	{telemetry.ObstacleWriteCap,
		"the limit of bytes written in a day is reached",
		"Raise OLLAMA_KV_TIER_WRITE_GB_PER_DAY, or wait for the next day (UTC)."},
	{telemetry.ObstacleSlow,
		"pages are computed more quickly than the disk takes them",
		"Use a faster disk; kvtier bench measures it."},
	{telemetry.ObstacleHung,
		"the disk does not answer",
		"Look at the disk or the mount: dmesg, findmnt."},
	{telemetry.ObstacleOther,
		"storing fails for another reason",
		"Look at the reason; kvtier doctor looks at the machine."},
}

// Explain explains an obstacle. One that a newer program reports has an explanation, too.
func Explain(c telemetry.Obstacle) Explanation {
	i := slices.IndexFunc(explanations, func(e Explanation) bool { return e.Cause == c })
	if i < 0 {
		return Explanation{c, "a newer program gave this cause", "Update kvtier to the version of the server."}
	}
	return explanations[i]
}
