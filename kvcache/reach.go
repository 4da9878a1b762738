package kvcache

import (
	"context"
	"slices"

	"github.com/kvtier/kvtier/diskstore/pagefile"
)

/*
With Options.Reach, rows of an image attend to all of the image's batch: they, and all rows that
attend to them, follow from where the batch ended too.

	text   image   question   answer …
	      [begin            end)         the batch has the image and the question

The image's hash names the text up to end ([pagefile.Reached]), and with it the keys of all pages
from begin on. A prompt does not say where a batch once ended. A slot that has the image does, and
so does the header of a tail or a branch. The name of a full page does not: a look-up asks for the
page of each end that is possible, which costs as many system calls as a batch has tokens.
*/

// discover finds out where the batches of a prompt's images ended whose full pages are stored or
// queued. parent is the key of the page before position start.
func (f *finder) discover(ctx context.Context, text *prompt, parent pagefile.Key, start int) {
	if f.reach == 0 {
		return
	}
	size, at := f.size, start
	text.media = slices.Clone(text.media) // the request's other look-ups use the array
	for k, m := range text.media {
		page := int(m.Offset) / size * size
		switch {
		case int(m.Offset) < start || text.media[k].Reach() > 0:
			continue
		case page+size > len(text.tokens):
			return // a tail or a branch, which tells
		}
		for ; at < page; at += size {
			parent = pagefile.ChainKey(parent, text.tokens[at:at+size], pagefile.MediaWithin(text.media, at, size))
		}
		end, found := f.batchEnd(ctx, text, k, parent, page)
		if !found {
			return
		}
		text.ends(k, end)
	}
}

// batchEnd looks for a page that begins with the prompt's tokens at a position, and in which the
// k-th image is the first whose batch's end is not known. batchEnd returns that end.
func (f *finder) batchEnd(ctx context.Context, text *prompt, k int, parent pagefile.Key, page int) (end int, found bool) {
	size := f.size
	begin := int(text.media[k].Offset)
	least, most := begin+1, begin+f.reach
	for _, s := range text.spans {
		if s.begin <= begin && begin < s.end {
			least, most = s.end, max(most, s.end)
		}
	}
	ends := make(map[pagefile.Key]int)
	var keys []pagefile.Key
	rest := text.tokens[begin:min(most, len(text.tokens))]
	for n, hash := range pagefile.Reaches(text.media[k].Hash, rest, pagefile.MediaWithin(text.media, begin, len(rest))) {
		end := begin + n
		if end < least {
			continue
		}
		in := pagefile.MediaWithin(text.media[:k], page, size)
		for i := k; i < len(text.media) && int(text.media[i].Offset) < min(end, page+size); i++ {
			m := pagefile.Media{Offset: text.media[i].Offset, Hash: hash}
			if i > k {
				m = text.reached(i, end)
			}
			in = append(in, pagefile.Media{Offset: m.Offset - uint32(page), Hash: m.Hash})
		}
		key := pagefile.ChainKey(parent, text.tokens[page:page+size], in)
		keys, ends[key] = append(keys, key), end
	}
	waiting := f.queue.keys()
	for _, key := range keys {
		if waiting[key] {
			return ends[key], true
		}
	}
	key, found := f.store.anyOf(ctx, keys)
	return ends[key], found
}
