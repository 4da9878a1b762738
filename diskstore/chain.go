package diskstore

import (
	"context"
	"errors"

	"github.com/kvtier/kvtier/diskstore/internal/ram"
	"github.com/kvtier/kvtier/diskstore/pagefile"
	"github.com/kvtier/kvtier/diskstore/tier"
)

// Ref is a stored page that Chain found. The page may be evicted at any time: Read then
// returns tier.ErrNotFound.
type Ref struct {
	Key    pagefile.Key
	Parent pagefile.Key
	Start  uint32 // position of the page's first token
	Tokens int    // usable rows: of the last page of a chain the prefix that it shares with the prompt
	Stored int    // tokens in the file; Read expects a Layout of as many tokens
	Tail   bool   // a tail, not a full page
	Tier   string // RAM, Local or Remote: the tier in which the page was found
	Bytes  int64  // size of the file

	// Ahead is set by a caller that reads the page before a request wants it: the page does not
	// count as used.
	Ahead bool

	used int64 // recency when found, in Unix nanoseconds
	at   int64 // the last use of the chain, if the page is read; 0 for the time of reading
}

// Whole reports whether the page is a full one whose rows can all be used.
func (r Ref) Whole() bool { return !r.Tail && r.Tokens == r.Stored }

// Chain returns the longest stored chain of pages for a sequence that begins with tokens: full
// pages from position 0 on, then the page or tail after the last of them that shares the longest
// prefix with the remaining tokens. Offsets of media count from position 0.
//
// Chain never fails: an error ends the chain. A remote tier that does not answer adds at most
// Options.RemoteTimeout; one that does may add as much again for each batch of pages that it
// finds, and for the last one. Returned pages may be gone before they are read.
func (s *Store) Chain(ctx context.Context, tokens []int32, media []pagefile.Media) []Ref {
	return s.ChainFrom(ctx, s.opt.Fingerprint, 0, tokens, media)
}

// ChainFrom does as Chain, for a caller that already has the pages before position start.
// parent is the key of the last of these pages (the fingerprint when start is 0), start is a
// multiple of Options.PageTokens, and tokens are the tokens from start on. Offsets of media
// still count from position 0; media before start is ignored.
func (s *Store) ChainFrom(ctx context.Context, parent pagefile.Key, start int, tokens []int32, media []pagefile.Media) []Ref {
	if start < 0 || start%s.opt.PageTokens != 0 {
		return nil
	}
	ctx, leave, err := s.life.Enter(ctx)
	if err != nil {
		return nil
	}
	defer leave()
	names := s.chainNames(parent, start, tokens, media)
	refs, err := s.findPages(ctx, names, parent, start)
	remoteCtx, cancel := context.WithTimeout(ctx, s.opt.RemoteTimeout)
	defer cancel()
	if err != nil {
		cancel() // the remote tier has had its time
	}
	if n := len(refs); n > 0 {
		parent = refs[n-1].Key
	}
	done := len(refs) * s.opt.PageTokens
	rest := tokens[done:]
	rest = rest[:min(len(rest), s.opt.PageTokens)]
	restMedia := pagefile.MediaWithin(media, start+done, len(rest))
	if last, ok := s.findLast(ctx, remoteCtx, parent, start+done, rest, restMedia); ok {
		refs = append(refs, last)
	}
	if len(refs) == 0 {
		s.counts.misses.Add(1)
	}
	return refs
}

// chainNames computes the names of all full pages of tokens.
func (s *Store) chainNames(parent pagefile.Key, start int, tokens []int32, media []pagefile.Media) []pagefile.Name {
	pageTokens := s.opt.PageTokens
	names := make([]pagefile.Name, 0, len(tokens)/pageTokens)
	for at := 0; at+pageTokens <= len(tokens); at += pageTokens {
		parent = pagefile.ChainKey(parent, tokens[at:at+pageTokens], pagefile.MediaWithin(media, start+at, pageTokens))
		names = append(names, s.pageName(parent))
	}
	return names
}

// findPages returns the leading pages of names that some tier holds, and the error with which
// the remote tier ended the search.
func (s *Store) findPages(ctx context.Context, names []pagefile.Name, parent pagefile.Key, start int) ([]Ref, error) {
	found := make([]tier.Info, 0, len(names))
	from := make([]*level, len(names)) // the tier that has the file
	inRAM := make([]bool, len(names))  // and no check of the file is due
	var missing []pagefile.Name        // from the local tier, in order
	for _, name := range names {
		if file, fresh := s.ram.Fresh(name); fresh {
			from[len(found)], inRAM[len(found)] = s.level(file.Tier), true
			found = append(found, file.Info)
			continue
		}
		from[len(found)] = s.local
		info, err := s.disk.Stat(ctx, name)
		if err != nil || s.local.verdicts.isBad(info) {
			s.noteError(err)
			if s.remote == nil {
				break
			}
			missing = append(missing, name)
			from[len(found)] = s.remote
		}
		found = append(found, info)
	}
	var remote []tier.Info
	var failed error // the tier counts errors; pages found before an error are good
	if len(missing) > 0 {
		remote, failed = s.guard.Leading(ctx, missing)
	}
	refs := make([]Ref, 0, len(found))
	at := s.now() // the last use of the chain up to the page before
	now := at
	for i, info := range found {
		if from[i] == s.remote && !inRAM[i] {
			if len(remote) == 0 {
				break
			}
			if info, remote = remote[0], remote[1:]; s.remote.verdicts.isBad(info) {
				break
			}
		}
		first := uint32(start + i*s.opt.PageTokens)
		used := chainUsed(info.Used, first)
		if from[i].fresh(used, now) && used.Before(at) {
			at = used
		}
		l := link{parent: parent, start: first}
		if from[i] == s.local {
			l.used = used
		}
		s.links.put(info.Key, l)
		name := from[i].name
		if inRAM[i] || s.ram.Confirm(ram.File{Info: info, Tier: from[i].name}) {
			name = tier.RAM
		}
		refs = append(refs, Ref{
			Key: info.Key, Parent: parent, Start: first,
			Tokens: s.opt.PageTokens, Stored: s.opt.PageTokens,
			Tier: name, Bytes: info.Bytes, used: info.Used.UnixNano(), at: at.UnixNano(),
		})
		parent = info.Key
	}
	return refs, failed
}

// findLast returns the tail or page after parent that shares the longest prefix with rest, the
// tokens from position start on. Of equally long prefixes findLast prefers that of a tail.
func (s *Store) findLast(ctx, remoteCtx context.Context, parent pagefile.Key, start int, rest []int32, media []pagefile.Media) (Ref, bool) {
	if len(rest) == 0 {
		return Ref{}, false
	}
	best := s.findTail(ctx, remoteCtx, parent, start, rest, media)
	if best.Tokens < min(len(rest), s.opt.PageTokens-1) {
		best = s.findBranch(ctx, remoteCtx, parent, start, rest, media, best)
	}
	return best, best.Tokens > 0
}

// findTail returns the tail of parent that shares the longest prefix with rest, the tokens
// from position start on. Of equally long prefixes findTail prefers the shortest file, then
// the tail in memory, then the local tail.
func (s *Store) findTail(ctx, remoteCtx context.Context, parent pagefile.Key, start int, rest []int32, media []pagefile.Media) Ref {
	best := s.tailInRAM(remoteCtx, parent, start, rest, media)
	if best.Tokens == min(len(rest), s.opt.PageTokens-1) {
		return best
	}
	for _, lv := range s.levels(tier.Local) {
		tierCtx, infos := lv.listTails(ctx, remoteCtx, parent)
		for _, info := range infos {
			ref, ok := lv.matchTail(tierCtx, info, start, rest, media)
			if ok && (ref.Tokens > best.Tokens || ref.Tokens == best.Tokens && ref.Stored < best.Stored) {
				best = ref
			}
		}
		if best.Tokens == min(len(rest), s.opt.PageTokens-1) {
			break // no longer prefix can exist
		}
	}
	return best
}

// lookupCtx returns the one of two contexts that bounds look-ups in a tier.
func (lv *level) lookupCtx(ctx, remoteCtx context.Context) context.Context {
	if lv == lv.s.remote {
		return remoteCtx
	}
	return ctx
}

// listTails returns the tails of parent in a tier, none after an error, and the context for
// reading them.
func (lv *level) listTails(ctx, remoteCtx context.Context, parent pagefile.Key) (context.Context, []tier.Info) {
	ctx = lv.lookupCtx(ctx, remoteCtx)
	infos, err := lv.tier.Tails(ctx, lv.s.opt.Fingerprint, parent)
	if err != nil {
		lv.noteTierError(err)
		return ctx, nil
	}
	return ctx, infos
}

// matchTail compares one stored tail with rest.
func (lv *level) matchTail(ctx context.Context, info tier.Info, start int, rest []int32, media []pagefile.Media) (Ref, bool) {
	if ctx.Err() != nil {
		return Ref{}, false
	}
	ref, _ := lv.match(ctx, info.Name, info.Parent, start, rest, media)
	return ref, ref.Tokens > 0
}

// match compares a stored page or tail after parent with rest, the tokens from position start on.
// Ref.Tokens is the number of leading tokens that they share, and 0 after an error.
func (lv *level) match(ctx context.Context, name pagefile.Name, parent pagefile.Key, start int, rest []int32, media []pagefile.Media) (Ref, error) {
	h, info, err := lv.checkedHeader(ctx, name)
	if err != nil {
		return Ref{}, err
	}
	if h.PageTokens != lv.s.opt.PageTokens || h.Parent != parent || int64(h.Start) != int64(start) {
		return Ref{}, nil
	}
	return Ref{
		Key: name.Key, Parent: parent, Start: h.Start,
		Tokens: pagefile.CommonPrefix(h.Tokens, h.Media, rest, media), Stored: len(h.Tokens), Tail: h.Tail(),
		Tier: lv.name, Bytes: info.Bytes, used: info.Used.UnixNano(),
	}, nil
}

// noteError counts an error of the local tier unless a file is just missing.
func (s *Store) noteError(err error) { s.local.noteTierError(err) }

// noteTierError does as noteError for any tier; the remote tier counts its own errors.
func (lv *level) noteTierError(err error) {
	if lv == lv.s.local && err != nil && !errors.Is(err, tier.ErrNotFound) && !errors.Is(err, context.Canceled) && !errors.Is(err, context.DeadlineExceeded) {
		lv.s.counts.tierErrors.Add(1)
		lv.counts.failed.Add(1)
	}
}
