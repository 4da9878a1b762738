package kvcache

import "time"

// Restored is the result of a restore.
type Restored struct {
	// Held counts the leading tokens of the prompt that the slot holds now.
	Held int
	// Tokens counts the tokens that came from the store.
	Tokens int
	// Shifted counts the restored tokens that were computed at another position, with other
	// text before them. Rows computed after shifted rows are not exact, and are not stored.
	Shifted int
	// Lossy counts the restored tokens from the first lossy page on, without shifted ones. These
	// rows and rows computed after them are not exact, and are not stored.
	Lossy int
	// Early counts the restored tokens that came while the model loaded.
	Early int
	// Bytes estimates the bytes read from the store.
	Bytes int64
	// Tiers names the tiers that were read, in order of first use.
	Tiers []string
	// Took is the time from the lookup to the last row.
	Took time.Duration
}
