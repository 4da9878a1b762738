package diskstore_test

import (
	"context"
	"fmt"
	"log"
	"os"
	"path/filepath"

	"github.com/kvtier/kvtier/diskstore"
	"github.com/kvtier/kvtier/diskstore/pagefile"
)

// A model with one layer of 8 bytes of keys and 8 bytes of values for each token. Its first
// page is stored, found by the tokens of a prompt, and read.
func Example() {
	ctx := context.Background()
	dir, err := os.MkdirTemp("", "pages")
	if err != nil {
		log.Fatal(err)
	}
	defer os.RemoveAll(dir)
	fingerprint := pagefile.Key{1} // identifies every input of the rows except the tokens
	store, err := diskstore.Open(ctx, diskstore.Options{
		Fingerprint: fingerprint, PageTokens: 4,
		Local: diskstore.TierConfig{Root: filepath.Join(dir, "root"), BudgetBytes: 1 << 30},
	})
	if err != nil {
		log.Fatal(err)
	}
	defer store.Close()
	sections := []pagefile.Section{{Kind: pagefile.KindK, RowBytes: 8}, {Kind: pagefile.KindV, RowBytes: 8}}
	layout, err := pagefile.NewLayout(sections, 4)
	if err != nil {
		log.Fatal(err)
	}
	rows := make([]byte, layout.Size())
	copy(layout.Rows(rows, 0), "keys of four tokens")
	page := &pagefile.Page{Parent: fingerprint, Tokens: []int32{10, 11, 12, 13}, Layout: layout, Payload: rows}
	if err := store.Put(ctx, page); err != nil {
		log.Fatal(err)
	}

	prompt := []int32{10, 11, 12, 13, 99}
	for _, ref := range store.Find(ctx, diskstore.Prompt{Tokens: prompt}).Exact {
		buf := make([]byte, layout.Size())
		if err := store.Read(ctx, ref, prompt[ref.Start:ref.End()], layout, diskstore.Into{Rows: buf}); err != nil {
			log.Fatal(err)
		}
		fmt.Printf("%d tokens from the %s tier: %.19s\n", ref.Tokens, ref.Tier, layout.Rows(buf, 0))
	}
	// Output: 4 tokens from the local tier: keys of four tokens
}
