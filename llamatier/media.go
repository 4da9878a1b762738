package llamatier

import (
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"encoding/json"
	"errors"
	"io/fs"
	"log/slog"
	"maps"
	"slices"
	"sync"

	"github.com/kvtier/kvtier/internal/jsonfile"
	"github.com/kvtier/kvtier/llamastate"
)

// Part is an image or a sound in a prompt, and the text behind it.
type Part struct {
	ID     string  // SHA-256 of its file, in hex; "" if that is not known
	Stands int32   // for it where nothing else is known of it
	Tokens []int32 // of the text behind it
}

// shown is what llama-server makes of an image or a sound: tokens of its own, among which are those of one
// or more media.
type shown struct {
	Tokens []int32             // of media: llamastate.MediaToken
	Media  []llamastate.Medium // Start counts from the first of Tokens
	Sum    string              // of the others, in a file
}

// album knows what llama-server makes of images and sounds. The prompt of a request names their files
// alone; a saved slot has the rest. In sequences a number below 0 stands for each of their tokens, which
// follows from the content.
type album struct {
	key  string // of what decides their rows, beside their content and the model; "" if they are not stored
	path string // of the file in which they are kept; "" keeps them in memory alone
	log  *slog.Logger

	mu    sync.Mutex
	shown map[string]shown // by name
	order []string         // the names, the oldest first
	fresh bool             // the file lacks some
}

const (
	albumMax      = 1 << 10 // images and sounds that are known
	albumBytesMax = 64 << 20
	// mediaLeast is the least number of tokens of a medium that is stored: their numbers have 31 bits each.
	mediaLeast = 4
)

func newAlbum(key, path string, log *slog.Logger) *album {
	a := &album{key: key, path: path, log: log, shown: make(map[string]shown)}
	if key == "" || path == "" {
		return a
	}
	var kept map[string]shown
	if err := jsonfile.Read(path, albumBytesMax, &kept); err != nil {
		if !errors.Is(err, fs.ErrNotExist) {
			log.Debug("kv tier: images of earlier runs are not known", "error", err)
		}
		return a
	}
	for name, s := range kept {
		if s.Sum == s.sum(name) && s.whole() {
			a.addLocked(name, s)
		}
	}
	return a
}

// sum is the sum of a name and what is shown under it.
func (s shown) sum(name string) string {
	s.Sum = name
	text, err := json.Marshal(s)
	if err != nil {
		return ""
	}
	sum := sha256.Sum256(text)
	return hex.EncodeToString(sum[:])
}

// whole reports whether all media have their tokens, one behind the other: anybody can make a sum.
func (s shown) whole() bool {
	at := 0
	for _, m := range s.Media {
		if m.Start < at || m.Tokens < mediaLeast || m.Tokens > len(s.Tokens)-m.Start || m.IDAt < 0 || m.IDAt > len(m.Chunk) {
			return false
		}
		at = m.End()
	}
	return true
}

// name is the name of an image or sound which is the one of a number in its prompt: some models tell the
// first from the second. The name tells nothing of the content.
func (a *album) name(id string, number int) string {
	h := sha256.New()
	h.Write([]byte(a.key + "\x00" + id))
	h.Write(binary.LittleEndian.AppendUint32(nil, uint32(number)))
	return hex.EncodeToString(h.Sum(nil))
}

// addLocked adds an image, for which the oldest may go.
func (a *album) addLocked(name string, s shown) {
	if _, known := a.shown[name]; !known {
		a.order = append(a.order, name)
	}
	a.shown[name] = s
	for len(a.order) > albumMax {
		delete(a.shown, a.order[0])
		a.order = a.order[1:]
	}
}

// restMax bounds the numbers that stand for a rest, about as many as the longest contexts have tokens: a
// body of 64 MiB has room for millions of images.
const restMax = 1 << 20

// mediaTokens is about the number of tokens that an image takes.
const mediaTokens = 256

// expand replaces the first parts of a request by their tokens, up to the first part that is not known.
// Rest stands for that one and all behind it.
func (a *album) expand(r Request) Request {
	if len(r.Parts) > 0 {
		r.Tokens = slices.Clone(r.Tokens)
	}
	for len(r.parts()) > 0 {
		part := r.parts()[0]
		s, known := a.look(part.ID, r.known)
		if !known || r.Tenant != (Tenant{}) { // what others have shown tells of them
			break
		}
		for _, m := range s.Media {
			m.Start, m.ID = m.Start+len(r.Tokens), part.ID
			r.media = append(r.media, m)
		}
		at := len(r.Tokens)
		r.Tokens = append(r.Tokens, s.Tokens...)
		a.number(r.Tokens[at:], s.Media, part.ID)
		r.Tokens = append(r.Tokens, part.Tokens...)
		r.known++
	}
	for _, part := range r.parts() {
		if len(r.Rest) >= restMax {
			break
		}
		r.Rest = append(append(r.Rest, slices.Repeat([]int32{part.Stands}, mediaTokens)...), part.Tokens...)
	}
	return r
}

// look returns what is known of an image or sound.
func (a *album) look(id string, number int) (shown, bool) {
	if a.key == "" || id == "" {
		return shown{}, false
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	s, known := a.shown[a.name(id, number)]
	return s, known
}

// number puts the numbers that stand for some media, whose files have the same ID, into tokens.
func (a *album) number(tokens []int32, media []llamastate.Medium, id string) {
	for _, m := range media {
		h := sha256.New()
		h.Write([]byte(a.key + "\x00" + id + "\x00"))
		h.Write(m.Chunk)
		seed := h.Sum(nil)
		for i := range m.Tokens {
			sum := sha256.Sum256(binary.LittleEndian.AppendUint32(seed, uint32(i)))
			tokens[m.Start+i] = int32(binary.LittleEndian.Uint32(sum[:]) | 1<<31)
		}
	}
}

// read puts the numbers that stand for its media into the tokens of a saved slot, and cuts off what must not
// be stored.
func (a *album) read(state *llamastate.File) {
	for i, m := range state.Media {
		if a.key == "" || m.Tokens < mediaLeast {
			state.CutAt(i)
			return
		}
		a.number(state.Tokens, state.Media[i:i+1], m.ID)
	}
}

// learn learns what llama-server has made of the parts of a prompt behind its first tokens, from a saved
// slot, and reports whether it did. prompt is the number of all tokens of the prompt.
func (a *album) learn(state *llamastate.File, first, known int, parts []Part, prompt int) bool {
	i := slices.IndexFunc(state.Media, func(m llamastate.Medium) bool { return m.Start >= first })
	if i < 0 || prompt > len(state.Tokens) {
		return false
	}
	media := state.Media[i:]
	lead := media[0].Start - first // tokens of its own before each image's first medium
	learned := make(map[string]shown)
	begin := first
	for k, part := range parts {
		n := mediaOf(media, parts[k:])
		if n == 0 {
			return false
		}
		behind := prompt // the end of the text behind the image
		if n < len(media) {
			behind = media[n].Start - lead
		}
		end := behind - len(part.Tokens)
		if k == len(parts)-1 && n < len(media) || begin+lead != media[0].Start || end < media[n-1].End() || !slices.Equal(state.Tokens[end:behind], part.Tokens) {
			return false
		}
		learned[a.name(part.ID, known+k)] = show(state.Tokens[begin:end], media[:n], begin)
		media, begin = media[n:], behind
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	for name, s := range learned {
		s.Sum = s.sum(name)
		a.addLocked(name, s)
	}
	a.fresh = true
	return true
}

// mediaOf returns the number of the first media that are those of the first of some parts. Equal images
// side by side have as many each.
func mediaOf(media []llamastate.Medium, parts []Part) int {
	same, images := 0, 0
	for same < len(media) && media[same].ID == parts[0].ID {
		same++
	}
	for images < len(parts) && parts[images].ID == parts[0].ID {
		images++
	}
	if same%images != 0 {
		return 0
	}
	return same / images
}

// show returns what is shown of an image whose tokens begin at a position.
func show(tokens []int32, media []llamastate.Medium, begin int) shown {
	s := shown{Tokens: slices.Clone(tokens), Media: slices.Clone(media)}
	for i := range s.Media {
		m := &s.Media[i]
		m.Start, m.ID = m.Start-begin, ""
		for n := range m.Tokens {
			s.Tokens[m.Start+n] = llamastate.MediaToken
		}
	}
	return s
}

// keep writes what was learned into the file, beside what other processes have learned by now.
func (a *album) keep() error {
	a.mu.Lock()
	fresh, all := a.fresh && a.path != "", maps.Clone(a.shown)
	a.fresh = false
	a.mu.Unlock()
	if !fresh {
		return nil
	}
	var kept map[string]shown
	_ = jsonfile.Read(a.path, albumBytesMax, &kept) // without it, others learn theirs again
	for name, s := range kept {
		if len(all) < albumMax {
			all[name] = s
		}
	}
	text, err := json.Marshal(all)
	if err != nil {
		return err
	}
	return jsonfile.Replace(a.path, text)
}
