package dir

import (
	"context"

	"github.com/kvtier/kvtier/diskstore/pagefile"
	"github.com/kvtier/kvtier/diskstore/tier"
)

// Scratch is a file among the temporary ones that never becomes a page. After the death of the
// process the next one removes the file.
type Scratch struct{ up *dirUpload }

// Scratch stores a page's file durably, without a name that a look-up finds.
func (t *Tier) Scratch(ctx context.Context, e *pagefile.Encoded) (*Scratch, error) {
	up, err := t.Create(ctx, pagefile.Name{})
	if err != nil {
		return nil, err
	}
	err = e.WriteTo(func(p []byte) error { return up.Write(ctx, p) })
	if err != nil {
		up.Abort()
		return nil, err
	}
	if err := up.Seal(ctx); err != nil { // has discarded the file
		return nil, err
	}
	return &Scratch{up.(*dirUpload)}, nil
}

// Cold opens the file without the bytes that the system holds in memory, as far as the system
// allows.
func (s *Scratch) Cold(ctx context.Context) (tier.Blob, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	if err := s.up.t.FS.Uncache(s.up.tmp); err != nil {
		return nil, s.up.t.opFailed(err)
	}
	return OpenFile(s.up.t.FS, s.up.tmp, pagefile.Name{})
}

// Remove removes the file. A second call does nothing.
func (s *Scratch) Remove() { s.up.Abort() }

// maxTrialBytes bounds the read of the record of trials, whose content is not trusted.
const maxTrialBytes = 64 << 10

// Trials replaces the content of the record of trials by the result of change, and returns the new
// content, which is empty without a readable record. With a nil change the record is only read. The
// record may be lost, and of two changes at the same time one is.
func (t *Tier) Trials(ctx context.Context, change func(content []byte) []byte) ([]byte, error) {
	return t.changeOwn(ctx, trialFile, maxTrialBytes, change)
}
