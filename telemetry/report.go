package telemetry

import "time"

// Version is the version of [Report]. Readers pass reports of other versions over.
const Version = 1

// Bounds of a report. A process leaves out parts that exceed one of them.
const (
	ReportBytesMax = 1 << 20 // as JSON
	SeriesMax      = 1024    // of Totals, and of Gauges
	SlotsMax       = 256
	PromptsMax     = 64 // latest prompts
	WordsMax       = 48 // tokens of each side of Words
	BustersMax     = 8
	NameBytesMax   = 512 // of each string
)

// SilentAfter is the age from which a report is older than a process lets it become: where nothing
// changes, one comes after two thirds of it.
const SilentAfter = 45 * time.Second

// Kinds of engines, as in [Process].
const (
	EngineOllama = "ollama"       // a runner of a patched Ollama
	EngineLlama  = "llama-server" // the daemon before a llama-server
)

// Process identifies a process over the life of the machine: process ids come back, and so do
// clock ticks after a boot. Two reports are of the same process if their Process is equal.
type Process struct {
	Boot   string `json:"boot,omitempty"` // id of the machine's boot; empty where it is not known
	PID    int    `json:"pid"`
	Start  uint64 `json:"start,omitempty"` // clock ticks from the boot to the start of the process
	Engine string `json:"engine"`
}

// Model describes the model that the process has loaded.
type Model struct {
	// Weights is the SHA-256 of the weights, in hexadecimal. Name is the model's name where the
	// process knows it, else empty; package collect fills it in.
	Weights string `json:"weights"`
	Name    string `json:"name,omitempty"`

	Architecture string `json:"architecture,omitempty"`
	Fingerprint  string `json:"fingerprint"`
	Namespace    string `json:"namespace,omitempty"`
	CacheType    string `json:"cache_type,omitempty"`
	PageTokens   int    `json:"page_tokens"`
	// TokenBytes is the number of bytes of K/V of one token, in all layers; 0 until it is known.
	TokenBytes int64 `json:"token_bytes,omitempty"`
}

// Tier is a place for pages, as far as this process knows. Pages and bytes are those of all
// models in a directory; tiers of several processes with the same Root are one place.
type Tier struct {
	Name         string `json:"name"` // ram, local or remote
	Root         string `json:"root,omitempty"`
	Pages        int    `json:"pages"`
	Tails        int    `json:"tails"`
	Bytes        int64  `json:"bytes"`
	Booked       int64  `json:"booked_bytes"` // that count against the budget; 0 while unknown
	Budget       int64  `json:"budget_bytes"` // 0: all but 5 % of the disk
	WrittenToday int64  `json:"written_today_bytes"`
	WriteCap     int64  `json:"write_cap_bytes,omitempty"` // per day; 0: none
	Quarantined  int    `json:"quarantined"`               // files set aside by this process
	Down         bool   `json:"down"`                      // writing fails, or the breaker is open
}

// Slot is one sequence of the engine.
type Slot struct {
	ID     int `json:"id"`
	Tokens int `json:"tokens"`
	// Bytes of the slot's K/V that are in the engine's memory; 0 where they are not known.
	Bytes int64 `json:"bytes,omitempty"`
	// Pages of the slot's text by place: Hot is Bytes in pages, rounded up, Warm in the RAM tier, Cold in
	// the local tier, Remote in the remote one. A page may be in several places.
	Hot    int `json:"hot"`
	Warm   int `json:"warm"`
	Cold   int `json:"cold"`
	Remote int `json:"remote"`
	// Shifted: the slot holds rows that are not those that computing gives, such as rows that were
	// turned to another position, and is not stored from there on.
	Shifted bool `json:"shifted"`
	// Lossy: some of these rows came from lossy pages, or may depend on such rows.
	Lossy bool `json:"lossy,omitempty"`
	Busy  bool `json:"busy"` // a request runs in it
	// LastRestore is the time of the last restore into the slot, zero for none; Restored counts
	// its tokens. Saved is the estimated time saved by all restores into the slot.
	LastRestore time.Time     `json:"last_restore,omitzero"`
	Restored    int           `json:"restored"`
	Saved       time.Duration `json:"saved_ns"`
}

// Memory is memory that tiering or paging holds, counted where it is allocated.
type Memory struct {
	Name  string `json:"name"` // such as "write queue" or "paged arena"
	Bytes int64  `json:"bytes"`
	Limit int64  `json:"limit_bytes,omitempty"`
}

// Prompt is one prompt that was evaluated. Slot, RAM, Local, Remote, Shifted and Computed add up to Tokens.
type Prompt struct {
	Seq uint64    `json:"seq"` // 1 for the process's first prompt
	At  time.Time `json:"at"`
	// ID is the number of the slot.
	ID      int  `json:"slot"`
	Private bool `json:"private,omitempty"` // kv_store: false

	Tokens   int `json:"tokens"`
	Slot     int `json:"from_slot"`
	RAM      int `json:"from_ram"`
	Local    int `json:"from_local"`
	Remote   int `json:"from_remote"`
	Shifted  int `json:"shifted"` // reused at another position
	Computed int `json:"computed"`
	// Lossy counts the tokens from RAM, Local and Remote from the first lossy page on.
	Lossy int `json:"lossy,omitempty"`

	Restore time.Duration `json:"restore_ns"` // from the look-up to the last row
	Took    time.Duration `json:"took_ns"`    // from the look-up to the prompt's last batch; 0 if it did not end
	// Saved is an estimate: the time that computing all but the tokens from the slot would have
	// taken, as far as measured for as many tokens, less Took; 0 if it did not end.
	Saved time.Duration `json:"saved_ns"`
	// Miss says why more than the last token was computed, if it was.
	Miss *Miss `json:"miss,omitempty"`
}

// Miss is why a prompt computed more than it had to.
type Miss struct {
	Cause Cause `json:"cause"`
	// At is the position of the first token that was computed. For CauseDiffers it is that of
	// the first token which differs.
	At int `json:"at"`
	// Detail names the difference (a field of the identity, a tier); it is never text of a prompt.
	Detail string `json:"detail,omitempty"`
	// When and From tell when a page was evicted, and from which tier.
	When time.Time `json:"when,omitzero"`
	From string    `json:"from,omitempty"`
	// Words are the tokens around At; nil where they are private.
	Words *Words `json:"words,omitempty"`
}

// Words are tokens of two prompts around the place where they part. Package collect says where they are kept.
type Words struct {
	Begin int     `json:"begin"` // position of the first token of both
	Was   []int32 `json:"was"`   // of the earlier prompt
	Is    []int32 `json:"is"`    // of this one
}

// Buster is a place that changes in every prompt, so that the tokens behind it are not reused.
type Buster struct {
	Begin   int    `json:"begin"` // positions [Begin, End) of the latest prompt
	End     int    `json:"end"`
	Prompts int    `json:"prompts"` // in how many prompts in a row it changed
	Lost    int    `json:"lost"`    // tokens behind it that were computed in them, although they were the same
	Words   *Words `json:"words,omitempty"`

	Changed time.Time `json:"-"` // last, as this process knows
}

// Report is one process's account of itself.
type Report struct {
	Version int       `json:"version"`
	Process Process   `json:"process"`
	Started time.Time `json:"started"`
	At      time.Time `json:"at"`
	Model   Model     `json:"model"`

	// Totals have grown since the process began. Gauges are the state now. Keys are those of [Series].
	Totals map[string]float64 `json:"totals"`
	Gauges map[string]float64 `json:"gauges"`

	Tiers   []Tier   `json:"tiers"`
	Slots   []Slot   `json:"slots"`
	Memory  []Memory `json:"memory"`
	Prompts []Prompt `json:"prompts"` // the latest, oldest first
	Busters []Buster `json:"busters,omitempty"`

	// Unstored is nil while K/V is stored, or nothing had to be.
	Unstored *Unstored `json:"unstored,omitempty"`
	Unpaged  *Unpaged  `json:"unpaged,omitempty"`
}

// Unpaged is the reason why paged attention, which is asked for, is off for the model of a process, and
// the user's next step.
type Unpaged struct {
	Reason string `json:"reason"`
	Remedy string `json:"remedy"`
}
