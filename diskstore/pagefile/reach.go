package pagefile

import (
	"crypto/sha256"
	"encoding/binary"
	"hash"
	"iter"
	"slices"
)

/*
In some models the rows of an image attend to all of the image's batch, also to the text behind
the image. These rows follow from more than the tokens before them, so that the hash of such an
image names the text that they attended to:

	image, 16 bytes │ reach, uint32 LE │ text, 12 bytes

reach is the number of tokens of the text, from the image's first one to the end of its batch. A
reach of 0 says that nobody knows the text yet: of a prompt's image before its rows are computed or
found.
*/
const (
	imageBytes = 16
	reachBytes = imageBytes + 4
)

// Reaching returns the hash of an image whose rows attend to their whole batch, with a reach that
// is not known. Pages of a version that did not note the reach have other hashes.
func Reaching(digest [32]byte) (image [32]byte) {
	sum := sha256.Sum256(append([]byte("kvtier image that reaches ahead"), digest[:]...))
	copy(image[:imageBytes], sum[:])
	return image
}

// Reach is the number of tokens that the rows of a [Reaching] image attended to, from the image's
// first token on; 0 if it is not known.
func (m Media) Reach() int { return int(binary.LittleEndian.Uint32(m.Hash[imageBytes:])) }

// SameImage reports whether two [Reaching] images are the same one, with any reach.
func (m Media) SameImage(o Media) bool {
	return m.Offset == o.Offset && [imageBytes]byte(m.Hash[:]) == [imageBytes]byte(o.Hash[:])
}

// unreached is a [Reaching] image whose reach is not known.
func (m Media) unreached() Media {
	clear(m.Hash[imageBytes:])
	return m
}

// WithReaches returns the media of a sequence, [Reaching] ones with the reaches that a page's media tell
// before its position `tokens`. The page begins at position start, and its offsets count from there.
func WithReaches(media, page []Media, start uint32, tokens int) []Media {
	media = slices.Clone(media)
	for _, m := range page {
		if int(m.Offset) >= tokens {
			break
		}
		m.Offset += start
		for k := range media {
			if m.SameImage(media[k]) {
				media[k] = m
			}
		}
	}
	return media
}

// Unreached returns [Reaching] images as those whose reach is not known.
func Unreached(media []Media) []Media {
	bare := make([]Media, len(media))
	for i, m := range media {
		bare[i] = m.unreached()
	}
	return bare
}

// reached sums up the text that the rows of an image attend to.
type reached struct {
	image [32]byte
	sum   hash.Hash
	n     uint32
	media []Media // that are not added yet
}

func newReached(image [32]byte, media []Media) *reached {
	clear(image[imageBytes:])
	r := &reached{image: image, sum: sha256.New(), media: media}
	r.sum.Write(image[:imageBytes])
	return r
}

// add adds the next token, with the image that begins there, if any.
func (r *reached) add(token int32) {
	b := make([]byte, 5, 5+imageBytes)
	binary.LittleEndian.PutUint32(b, uint32(token))
	if len(r.media) > 0 && r.media[0].Offset == r.n {
		b[4] = 1
		b = append(b, r.media[0].Hash[:imageBytes]...)
		r.media = r.media[1:]
	}
	r.sum.Write(b)
	r.n++
}

func (r *reached) hash() [32]byte {
	h := r.image
	binary.LittleEndian.PutUint32(h[imageBytes:], r.n)
	copy(h[reachBytes:], r.sum.Sum(nil))
	return h
}

// Reaches returns, for each number of tokens, the hash of a [Reaching] image that attended to so
// many. tokens and media begin with the image; offsets of media count from there.
func Reaches(image [32]byte, tokens []int32, media []Media) iter.Seq2[int, [32]byte] {
	return func(yield func(int, [32]byte) bool) {
		r := newReached(image, media)
		for _, token := range tokens {
			if r.add(token); !yield(int(r.n), r.hash()) {
				return
			}
		}
	}
}

// Reached is the last hash of [Reaches].
func Reached(image [32]byte, tokens []int32, media []Media) [32]byte {
	r := newReached(image, media)
	for _, token := range tokens {
		r.add(token)
	}
	return r.hash()
}

// reachedBy reports whether the first n tokens are all that an image attended to.
func (m Media) reachedBy(tokens []int32, media []Media, n int) bool {
	begin, end := int64(m.Offset), int64(m.Offset)+int64(m.Reach())
	return end <= int64(n) && Reached(m.Hash, tokens[begin:end], MediaWithin(media, int(begin), int(end-begin))) == m.Hash
}
