package tier

import "context"

// Graveyard is a tier that keeps a list of the pages that left it. A tier need not be one.
type Graveyard interface {
	// Graves replaces the content of the list by the result of change, and returns the new
	// content. The content is empty without a readable list. With a nil change the list is only
	// read. The list may be lost in a power cut, and of two changes at the same time one is lost.
	// Readers see a whole list, or anything after a power cut.
	Graves(ctx context.Context, change func(content []byte) []byte) ([]byte, error)
}
