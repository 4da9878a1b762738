package telemetry

import "time"

// Obstacle is why K/V that should have been stored is not, although tiering is on. The list is closed.
type Obstacle string

// Obstacles. Package unstored explains each.
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

// Obstacles lists every obstacle.
var Obstacles = []Obstacle{
	ObstacleRunner, ObstacleModel, ObstacleEmbedding, ObstacleOption, ObstacleSlotFile, ObstacleSlot, ObstacleEngine,
	ObstacleLayout, ObstacleCopy, ObstacleSetting, ObstacleRoot, ObstacleDenied, ObstacleReadOnly, ObstacleFull, ObstacleInodes,
	ObstacleName, ObstacleBudget, ObstacleWriteCap, ObstacleSlow, ObstacleHung, ObstacleOther,
}

// Unstored says that K/V of a process's model is not stored now.
type Unstored struct {
	Cause Obstacle `json:"cause"`
	// Detail is the error, of at most NameBytesMax bytes; it is never text of a prompt.
	Detail string    `json:"detail,omitempty"`
	Since  time.Time `json:"since"`
}
