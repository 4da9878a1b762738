package llamae2e

import (
	"context"
	"encoding/binary"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"hash/crc32"
	"io"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/config"
	"github.com/aws/aws-sdk-go-v2/credentials"
	"github.com/aws/aws-sdk-go-v2/service/s3"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/kvtier/kvtier/diskstore/pagefile"
	"github.com/kvtier/kvtier/diskstore/tier"
	"github.com/kvtier/kvtier/internal/engines"
	"github.com/kvtier/kvtier/internal/llamatest"
	"github.com/kvtier/kvtier/internal/remote"
	"github.com/kvtier/kvtier/internal/testmodel"
	"github.com/kvtier/kvtier/internal/tierenv"
)

// fleetLong makes boxes find back to an engine by themselves after each fault, on each engine.
var fleetLong = os.Getenv("KVTIER_LONG") != ""

const (
	fleetBoxes  = 3
	fleetTokens = 200              // of a conversation's prompt
	fleetPage   = 32               // tokens of a page
	fleetWait   = 30 * time.Second // most time of a request, whatever has failed
)

// teamEngine is a server in which the boxes of a fleet keep pages together, in a box of its own.
type teamEngine struct {
	*engines.Server
	box   *box
	env   []string // of the boxes' servers, KEY=value
	wiped func()   // removes all that it has stored, while it does not run
	ready func()   // makes what it needs before it stores

	// replaced has another server take its place, with a copy of what it has stored. Nil: it has none.
	replaced func()
}

// teamEngines start the engines of docs/team.md, with the lines from there.
var teamEngines = map[string]func(t *testing.T, b *box) *teamEngine{
	"Valkey": func(t *testing.T, b *box) *teamEngine {
		lines, env := team(t, "## With Valkey")
		configuration := []string{"--port", "6379", "--appendonly", "yes"}
		for line := range strings.Lines(lines) {
			name, value, _ := strings.Cut(strings.TrimSpace(line), " ")
			configuration = append(configuration, "--"+name, strings.Trim(value, `"`))
		}
		host := engines.Host{Enter: b.enter}
		server, socket := host.Valkey(t, configuration...)
		e := &teamEngine{
			Server: server, box: b, env: b.at(t, env, "10.0.0.5:6379", "6379"), ready: func() {},
			wiped: func() { require.NoError(t, os.RemoveAll(filepath.Join(filepath.Dir(socket), "appendonlydir"))) },
		}
		e.replaced = func() {
			replica, socket := host.Valkey(t, append(configuration, "--port", "6380", "--replicaof", b.address+" 6379", "--masterauth", "change-this")...)
			require.True(t, eventually(startMax, func() bool { return strings.Contains(tell(t, socket, "INFO replication"), "master_link_status:up") }))
			e.Kill()
			e.Server = replica
			tell(t, socket, "REPLICAOF NO ONE", "CONFIG SET port 6379")
		}
		return e
	},
	"S3": func(t *testing.T, b *box) *teamEngine {
		_, env := team(t, "## With S3")
		server, endpoint, dir := engines.Host{Address: b.address, Enter: b.enter}.Weed(t)
		e := &teamEngine{
			Server: server, box: b, env: b.at(t, env, "10.0.0.5:8333", endpoint[strings.LastIndex(endpoint, ":")+1:]), ready: func() { makeBucket(t, endpoint) },
			wiped: func() {
				all, err := filepath.Glob(filepath.Join(dir, "*"))
				require.NoError(t, err)
				for _, path := range all {
					require.NoError(t, os.RemoveAll(path))
				}
			},
		}
		e.env = append(e.env, "AWS_EC2_METADATA_DISABLED=true", "AWS_CONFIG_FILE="+os.DevNull, "AWS_SHARED_CREDENTIALS_FILE="+os.DevNull)
		e.ready()
		return e
	},
}

// tell sends commands to a Valkey with the documented password, and returns its answers.
func tell(t *testing.T, socket string, commands ...string) string {
	conn, err := net.Dial("unix", socket)
	require.NoError(t, err)
	defer conn.Close()
	_, err = io.WriteString(conn, "AUTH change-this\r\n"+strings.Join(commands, "\r\n")+"\r\nQUIT\r\n")
	require.NoError(t, err)
	said, err := io.ReadAll(conn)
	require.NoError(t, err)
	require.NotContains(t, string(said), "-ERR")
	return string(said)
}

// team returns the lines of an engine's configuration, if there are some, and of the servers' environment in a section
// of docs/team.md.
func team(t *testing.T, heading string) (configuration string, env []string) {
	text, err := os.ReadFile("../../docs/team.md")
	require.NoError(t, err)
	_, section, found := strings.Cut(string(text), "\n"+heading+"\n")
	require.True(t, found)
	section, _, _ = strings.Cut(section, "\n## ")
	blocks := strings.Split(section, "\n```\n")
	for i := 1; i < len(blocks); i += 2 {
		lines, isUnit := strings.CutPrefix(blocks[i], "[Service]\n")
		if !isUnit {
			configuration = lines
			continue
		}
		for line := range strings.Lines(lines) {
			variable, found := strings.CutPrefix(strings.TrimSpace(line), "Environment=")
			require.True(t, found, line)
			env = append(env, strings.Trim(variable, `"`))
		}
	}
	require.NotEmpty(t, env)
	return configuration, env
}

// at returns documented variables for an engine in the box, with a key.
func (b *box) at(t *testing.T, env []string, documented, port string) (all []string) {
	key := filepath.Join(t.TempDir(), "key")
	require.NoError(t, os.WriteFile(key, []byte(strings.Repeat("0a", 32)), 0o600))
	for _, variable := range env {
		variable = strings.ReplaceAll(variable, documented, net.JoinHostPort(b.address, port))
		all = append(all, strings.ReplaceAll(variable, "/etc/kvtier/team.key", key))
	}
	return all
}

// makeBucket makes the bucket, as soon as the server can.
func makeBucket(t *testing.T, endpoint string) {
	settings, err := config.LoadDefaultConfig(t.Context(), config.WithRegion("us-east-1"), config.WithCredentialsProvider(
		credentials.NewStaticCredentialsProvider(engines.WeedAccess, engines.WeedSecret, "")))
	require.NoError(t, err)
	client := s3.NewFromConfig(settings, func(o *s3.Options) { o.BaseEndpoint, o.UsePathStyle = &endpoint, true })
	require.Eventually(t, func() bool {
		_, err := client.CreateBucket(t.Context(), &s3.CreateBucketInput{Bucket: aws.String("pages")})
		return err == nil
	}, startMax, 50*time.Millisecond)
}

// fleet is boxes that share an engine, and a stock server that tells what they have to answer.
type fleet struct {
	t       *testing.T
	o       llamatest.Options
	engine  *teamEngine
	pages   tier.Tier // of the engine
	boxes   []*box
	servers []*server

	mu      sync.Mutex // of what follows
	stock   *server
	want    map[int]answer // of conversations
	next    int            // a conversation that nobody has held
	longest time.Duration  // of a request
}

// TestFleet: three boxes share an engine. What one has computed another restores to the bit. Whatever happens to a
// box or to the engine, no request fails, takes for ever or gets another answer.
func TestFleet(t *testing.T) {
	tree(t)
	engines.Find(t, "KVTIER_VALKEY_SERVER", "team/bin/valkey-server")
	engines.Find(t, "KVTIER_WEED", "team/bin/weed")
	if !inOwnNetwork(t) {
		return
	}
	newBridge(t)
	for name, engine := range teamEngines {
		t.Run(name, func(t *testing.T) {
			f := newFleet(t, engine)
			f.share()
			f.dieInMidWrite()
			for _, fault := range f.faults() {
				if name == "Valkey" || fleetLong {
					f.goOn(fault)
				}
			}
			f.meetAnotherVersion()
			t.Logf("the longest request took %v", f.longest)
		})
	}
}

func newFleet(t *testing.T, engine func(t *testing.T, b *box) *teamEngine) *fleet {
	f := &fleet{t: t, want: make(map[int]answer), engine: engine(t, newBox(t, 100))}
	for _, variable := range f.engine.env {
		name, value, _ := strings.Cut(variable, "=")
		t.Setenv(name, value)
	}
	settings, _, bad := tierenv.Strict(os.Getenv, t.TempDir())
	require.Empty(t, bad)
	var err error
	f.pages, err = remote.Open(t.Context(), settings, slog.New(slog.DiscardHandler))
	require.NoError(t, err)
	t.Cleanup(func() { _ = f.pages.Close() })
	shape := testmodel.Shape{Arch: "qwen3", Layers: 2, Embed: 256, Heads: 4, KVHeads: 2}
	f.o = llamatest.Options{Model: aModel(t, shape), Args: []string{"-c", "2048", "-np", "1", "-ub", "1", "-t", "1"}}
	f.stock = start(t, f.o)
	f.servers = make([]*server, fleetBoxes)
	for i := range f.servers {
		f.boxes = append(f.boxes, newBox(t, 10+i))
		f.start(i, t.TempDir(), fleetPage)
	}
	return f
}

// start starts a box's server, with pages of so many tokens in a folder.
func (f *fleet) start(i int, dir string, page int) {
	o := f.o
	o.Root, o.Host, o.Enter = filepath.Join(dir, "pages"), f.boxes[i].address, f.boxes[i].enter
	o.Env = []string{fmt.Sprint("OLLAMA_KV_TIER_PAGE_TOKENS=", page)}
	f.boxes[i].dir, f.boxes[i].page, f.servers[i] = dir, page, start(f.t, o)
}

// fresh returns a conversation that nobody has held.
func (f *fleet) fresh() int {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.next++
	return f.next
}

// expected is the stock server's answer.
func (f *fleet) expected(conversation int) (want answer, err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	want, known := f.want[conversation]
	if !known {
		want, err = f.say(f.stock, conversation)
		f.want[conversation] = want
	}
	return want, err
}

// say asks a server, within fleetWait.
func (f *fleet) say(s *server, conversation int) (a answer, err error) {
	ctx, cancel := context.WithTimeout(context.Background(), fleetWait)
	defer cancel()
	body, err := s.Post(ctx, "/completion", map[string]any{
		"prompt": someTokens(conversation, fleetTokens), "n_predict": 4, "temperature": 0, "seed": 1, "n_probs": 3, "return_tokens": true,
	})
	if err != nil {
		return a, err
	}
	defer body.Close()
	return a, json.NewDecoder(body).Decode(&a)
}

// try asks a box, and returns how many tokens were not computed. An answer that is not the stock server's, to the
// bit, is an error.
func (f *fleet) try(i, conversation int) (cached int, err error) {
	want, err := f.expected(conversation)
	if err != nil {
		return 0, err
	}
	began := time.Now()
	got, err := f.say(f.servers[i], conversation)
	f.took(time.Since(began))
	if err == nil && !(slices.Equal(want.Tokens, got.Tokens) && slices.Equal(want.Probabilities, got.Probabilities)) {
		err = fmt.Errorf("%v after %d cached tokens, want %v", got, got.Timings.Cached, want)
	}
	if err != nil {
		err = fmt.Errorf("box %d, conversation %d: %w", i, conversation, err)
	}
	return got.Timings.Cached, err
}

func (f *fleet) took(d time.Duration) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.longest = max(f.longest, d)
}

func (f *fleet) ask(i, conversation int) (cached int) {
	f.t.Helper()
	cached, err := f.try(i, conversation)
	require.NoError(f.t, err)
	return cached
}

// names are those of a conversation's pages, as a box calls them.
func (f *fleet) names(i, conversation int) (names []pagefile.Name) {
	var key pagefile.Key
	fingerprints, err := filepath.Glob(filepath.Join(f.boxes[i].dir, "pages", "v1", strings.Repeat("?", 2*len(key))))
	require.NoError(f.t, err)
	require.Len(f.t, fingerprints, 1)
	_, err = hex.Decode(key[:], []byte(filepath.Base(fingerprints[0])))
	require.NoError(f.t, err)
	fingerprint := key
	page := f.boxes[i].page
	for page := range slices.Chunk(someTokens(conversation, fleetTokens/page*page), page) {
		key = pagefile.ChainKey(key, page, nil)
		names = append(names, pagefile.Name{Fingerprint: fingerprint, Key: key})
	}
	return names
}

// missing counts the pages of a box's conversation that the engine lacks; -1 while it does not answer.
func (f *fleet) missing(i, conversation int) (n int) {
	ctx, cancel := context.WithTimeout(f.t.Context(), time.Second)
	defer cancel()
	infos, err := f.pages.Find(ctx, f.names(i, conversation), false)
	if err != nil {
		return -1
	}
	for _, info := range infos {
		if !info.Found() {
			n++
		}
	}
	return n
}

// spread lets a box hold n new conversations, and waits until the engine has their pages.
func (f *fleet) spread(i, n int) (conversations []int) {
	f.t.Helper()
	for range n {
		conversations = append(conversations, f.fresh())
		f.ask(i, conversations[len(conversations)-1])
	}
	for _, conversation := range conversations {
		require.True(f.t, eventually(startMax, func() bool { return f.missing(i, conversation) == 0 }), "box %d shares what it computes", i)
	}
	return conversations
}

// eventually waits until a condition holds, and reports whether it does.
func eventually(patience time.Duration, holds func() bool) bool {
	for end := time.After(patience); !holds(); {
		select {
		case <-time.After(20 * time.Millisecond):
		case <-end:
			return false
		}
	}
	return true
}

// share: what one box has computed another restores to the bit, as the first has it in its slot.
func (f *fleet) share() {
	held := f.spread(0, 1)
	require.Greater(f.t, f.ask(0, held[0]), fleetTokens-fleetPage)
	require.Greater(f.t, f.ask(1, held[0]), fleetTokens-fleetPage)
}

// dieInMidWrite: a box dies while its pages are on their way to the engine. Others have right answers, and its next
// server sends the rest.
func (f *fleet) dieInMidWrite() {
	b, conversation := f.boxes[0], f.fresh()
	slow := func(does, how string) {
		run(f.t, slices.Concat(b.enter, strings.Fields("tc qdisc "+does+" dev eth0 root "+how))...)
	}
	slow("add", "tbf rate 1mbit burst 32k latency 400ms")
	f.ask(0, conversation)
	missing, all := 0, fleetTokens/fleetPage
	require.True(f.t, eventually(startMax, func() bool {
		missing = f.missing(0, conversation)
		return missing >= 0 && missing < all
	}))
	f.servers[0].killAll()
	slow("delete", "")
	f.t.Logf("the engine lacked %d of %d pages", missing, all)
	require.Positive(f.t, f.missing(0, conversation))
	f.ask(1, conversation)
	f.start(0, b.dir, fleetPage)
	require.True(f.t, eventually(startMax, func() bool { return f.missing(0, conversation) == 0 }), "the next server sends the rest")
	f.ask(2, conversation)
}

// fault is something that happens to the engine.
type fault struct {
	name       string
	begin, end func()
}

func (f *fleet) faults() []fault {
	e := f.engine
	signal := func(s unix.Signal) func() {
		return func() { require.NoError(f.t, unix.Kill(e.Process.Pid, s)) }
	}
	again := func() { e.Start(f.t); e.ready() }
	faults := []fault{
		{"dies", e.Kill, func() { e.Start(f.t) }},
		{"hangs", signal(unix.SIGSTOP), signal(unix.SIGCONT)},
		{"is cut off", e.box.cut, e.box.join},
		{"is wiped", func() { e.Kill(); e.wiped(); again() }, func() {}},
	}
	if e.replaced != nil {
		faults = append(faults, fault{"fails over", e.replaced, func() {}})
	}
	return faults
}

// askers ask all boxes, each for one conversation after the other.
type askers struct {
	*fleet
	answers [fleetBoxes]atomic.Int64
	happens chan struct{} // closed: each box is asked for a conversation that another holds
	ended   chan struct{} // closed: nothing more is asked
	failed  chan error    // how each has ended
}

func (f *fleet) askAll(held []int) *askers {
	a := &askers{fleet: f, happens: make(chan struct{}), ended: make(chan struct{}), failed: make(chan error, fleetBoxes)}
	for i := range fleetBoxes {
		go func() { a.failed <- a.askFor(i, held[i]) }()
	}
	return a
}

// askFor asks a box for new conversations, and for that one when something happens.
func (a *askers) askFor(i, held int) error {
	for happens := a.happens; ; {
		conversation := a.fresh()
		select {
		case <-happens:
			conversation, happens = held, nil
		case <-a.ended:
			return nil
		default:
		}
		if _, err := a.try(i, conversation); err != nil {
			return err
		}
		a.answers[i].Add(1)
	}
}

// await waits until each box has given n more answers, or one has failed.
func (a *askers) await(n int64) {
	var least [fleetBoxes]int64
	for i := range a.answers {
		least[i] = a.answers[i].Load() + n
	}
	require.True(a.t, eventually(4*fleetWait, func() bool {
		for i := range a.answers {
			if a.answers[i].Load() < least[i] {
				return len(a.failed) > 0
			}
		}
		return true
	}))
}

// goOn: while all boxes are asked for old and new conversations, something happens to the engine, and ends. They
// answer as before, and then share again.
func (f *fleet) goOn(fault fault) {
	f.t.Logf("the engine %s", fault.name)
	all := f.askAll(f.spread(0, fleetBoxes))
	all.await(1)
	close(all.happens)
	fault.begin()
	all.await(2)
	fault.end()
	close(all.ended)
	for range fleetBoxes {
		require.NoError(f.t, <-all.failed)
	}
	if !fleetLong && fault.name != "dies" { // the more faults there were, the longer boxes leave an engine alone
		for i, b := range f.boxes {
			f.servers[i].Kill()
			f.start(i, b.dir, fleetPage)
		}
		return
	}
	require.True(f.t, eventually(4*startMax, func() bool {
		conversation := f.fresh()
		f.ask(0, conversation)
		return eventually(startMax/6, func() bool { return f.missing(0, conversation) == 0 }) && f.ask(1, conversation) > fleetTokens-fleetPage
	}), "boxes share again")
}

// meetAnotherVersion: the engine has pages of a form that boxes do not know, at names that they look for, and a box
// joins that names its pages otherwise. Neither is in the others' way.
func (f *fleet) meetAnotherVersion() {
	held := f.spread(0, 1)
	ctx := f.t.Context()
	unknown := make(map[pagefile.Name][]byte)
	for _, name := range f.names(0, held[0]) {
		page := f.read(name)
		le, header := binary.LittleEndian, page[:binary.LittleEndian.Uint32(page[132:])]
		le.PutUint32(header[len(pagefile.PageMagic):], pagefile.SchemaLossy+1)
		le.PutUint32(header[len(header)-4:], crc32.Checksum(header[:len(header)-4], crc32.MakeTable(crc32.Castagnoli)))
		up, err := f.pages.Create(ctx, name)
		require.NoError(f.t, err)
		require.NoError(f.t, up.Write(ctx, page))
		_, err = up.Commit(ctx, time.Now())
		require.NoError(f.t, err)
		unknown[name] = page
	}
	require.Zero(f.t, f.ask(1, held[0]))
	f.servers[2].Kill()
	f.start(2, f.t.TempDir(), 2*fleetPage)
	require.Zero(f.t, f.ask(2, held[0]))
	known := f.spread(0, 1)
	require.Zero(f.t, f.ask(2, known[0]))
	require.Greater(f.t, f.ask(1, known[0]), fleetTokens-fleetPage)
	own := f.spread(2, 1)
	require.Zero(f.t, f.ask(1, own[0]))
	for name, page := range unknown {
		require.Equal(f.t, page, f.read(name))
	}
}

// read reads a page of the engine.
func (f *fleet) read(name pagefile.Name) []byte {
	blob, err := f.pages.Open(f.t.Context(), name, true)
	require.NoError(f.t, err)
	defer blob.Close()
	page := make([]byte, blob.Size())
	require.NoError(f.t, blob.ReadAt(f.t.Context(), page, 0))
	return page
}
