package llamatier

import (
	"github.com/kvtier/kvtier/diskstore"
	"github.com/kvtier/kvtier/diskstore/pagefile"
	"github.com/kvtier/kvtier/llamastate"
	"github.com/kvtier/kvtier/rates"
)

// loading is the name, among the rates, of the step in which the engine reads a file.
const loading = "llama-server"

// form is the form of an engine's files and of the pages that are made of them.
type form struct {
	shape      *llamastate.Shape
	window     int          // positions that the engine's window keeps; 0 without a window
	pageTokens int          // of a page
	root       pagefile.Key // the parent of first pages, which is the fingerprint of the store
}

// fileSize is about the size of the file of a number of tokens, in bytes.
func (f form) fileSize(tokens int) int64 { return f.shape.RowBytes(tokens, f.window) }

// layout is that of a page of a plan with a number of tokens.
func (f form) layout(p *plan, page, tokens int) (pagefile.Layout, error) {
	sections := f.shape.Sections()
	if page == len(p.refs)-1 && f.shape.HasEnd() {
		sections = f.shape.EndSections(f.window)
	}
	return pagefile.NewLayout(sections, tokens)
}

// headerMax is more than the header of a usual page has.
const headerMax = 64 << 10

// rowsIn estimates the bytes of rows in a page's file. A file that is larger than the rows of its
// tokens has an end, if the model has ends.
func (f form) rowsIn(ref diskstore.Ref) int64 {
	rows := f.shape.RowBytes(ref.Stored, 0)
	for _, sections := range [][]pagefile.Section{f.shape.Sections(), f.shape.EndSections(f.window)} {
		layout, err := pagefile.NewLayout(sections, ref.Stored)
		if err != nil {
			continue
		}
		if rows = int64(layout.Size()); ref.Bytes <= rows+headerMax {
			break
		}
	}
	return max(rows, 1)
}

func (f form) costs(p *plan) rates.Chain {
	c := rates.Chain{Base: p.held, Indivisible: f.shape.HasEnd(), Then: loading}
	for i, ref := range p.refs {
		page := rates.Page{Start: int(ref.Start), Tokens: ref.Tokens, Tier: ref.Tier, Rows: f.shape.RowBytes(ref.Stored, 0)}
		if layout, err := f.layout(p, i, ref.Stored); err == nil {
			page.Rows = int64(layout.Size())
		}
		whole := f.rowsIn(ref)
		page.Bytes, page.Form = int64(float64(ref.Bytes)*float64(page.Rows)/float64(whole)), rates.FormOf(ref.Bytes, whole)
		c.Pages = append(c.Pages, page)
	}
	return c
}
