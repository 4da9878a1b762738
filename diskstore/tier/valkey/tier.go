package valkey

import (
	"context"
	"crypto/rand"
	"crypto/tls"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"strings"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/valkey-io/valkey-go"

	"github.com/kvtier/kvtier/diskstore/tier"
	"github.com/kvtier/kvtier/internal/steady"
)

const (
	// maxConns is the number of connections at most; further operations wait for one. Package guard runs
	// fewer operations at the same time.
	maxConns = 16

	// connBytes is the size of each of a connection's two buffers. A look-up of 1000 names fits.
	connBytes = 128 << 10

	// answerIn bounds the time of one round trip, whatever its context says.
	answerIn = 10 * time.Second
	dialIn   = 5 * time.Second

	// idleIn is the time after which connections without work are closed.
	idleIn = time.Minute
)

// Options are the options of Open. The zero value is ready for use.
type Options struct {
	// TLS replaces the configuration of an address with TLS; nil trusts the system's roots.
	TLS *tls.Config
}

// Tier is a tier in Valkey or Redis.
type Tier struct {
	client valkey.Client
	where  string // the address without its password
	prefix string // of all keys
	id     string // in the ledger
	closed atomic.Bool
}

var _ tier.Tier = (*Tier)(nil)

// dialer makes a connection.
type dialer func(ctx context.Context, network, host string) (net.Conn, error)

// String is the address without the user and the password.
func (t *Tier) String() string { return t.where }

// Open returns the tier at an address: see the package's documentation. Open connects to nothing: a server
// that is away may come. The error tells how an address is written, and nothing of this one.
func Open(address string, opt Options) (*Tier, error) {
	a, err := parse(address)
	if err != nil {
		return nil, err
	}
	if a.tls != nil && opt.TLS != nil {
		a.tls = opt.TLS
	}
	d := &net.Dialer{Timeout: dialIn}
	if a.tls != nil {
		return open(a, (&tls.Dialer{NetDialer: d, Config: a.tls}).DialContext)
	}
	return open(a, d.DialContext)
}

func open(a address, dial dialer) (*Tier, error) {
	t := &Tier{where: a.String(), prefix: a.prefix + "v1:", id: newID()}
	// The client begins with a connection for pipelines of several callers, which this tier does not use.
	ready := false
	client, err := valkey.NewClient(valkey.ClientOption{
		InitAddress: []string{a.host}, Username: a.user, Password: a.password, SelectDB: a.db,
		DialCtxFn: func(ctx context.Context, host string, _ *net.Dialer, _ *tls.Config) (net.Conn, error) {
			if !ready {
				return nil, tier.ErrClosed
			}
			conn, err := dial(ctx, a.network, host)
			if err != nil {
				return nil, err
			}
			return &answers{Conn: conn}, nil
		},
		ForceSingleClient: true, DisableAutoPipelining: true, DisableCache: true,
		ClientSetInfo:    valkey.DisableClientSetInfo, // Redis 7.0 has no such command
		BlockingPoolSize: maxConns, BlockingPoolCleanup: idleIn,
		ReadBufferEachConn: connBytes, WriteBufferEachConn: connBytes,
		Dialer: net.Dialer{Timeout: dialIn}, ConnWriteTimeout: answerIn,
		RetryDelay: retryLost,
	})
	if client == nil {
		return nil, fmt.Errorf("open a tier in %s: %w", t.where, err)
	}
	ready = true
	t.client = client
	return t, nil
}

// newID returns 128 random bits.
func newID() string {
	var b [16]byte
	rand.Read(b[:])
	return hex.EncodeToString(b[:])
}

// retryLost repeats at once what was sent on a connection that the server had closed, as all that have no
// work are after a restart. Only operations that may run twice are repeated.
func retryLost(attempts int, _ valkey.Completed, err error) time.Duration {
	lost := errors.Is(err, io.EOF) || errors.Is(err, syscall.ECONNRESET) || errors.Is(err, syscall.EPIPE)
	if !lost || attempts > maxConns {
		return -1
	}
	return 0
}

// do sends commands in one round trip and returns their answers, or the first error. A nil answer is
// none. Of commands that failed or whose context has ended, any may have been executed, or will be.
func (t *Tier) do(ctx context.Context, what string, cmds ...valkey.Completed) ([]valkey.ValkeyResult, error) {
	if t.closed.Load() {
		return nil, tier.ErrClosed
	}
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	answers, inTime, _ := steady.Within(ctx.Done(), func() ([]valkey.ValkeyResult, error) {
		return t.client.DoMulti(ctx, cmds...), nil
	}, nil, nil)
	if !inTime {
		return nil, fmt.Errorf("%s in %s: no answer in time: %w", what, t.where, ctx.Err())
	}
	for _, a := range answers {
		if err := a.Error(); err != nil && !valkey.IsValkeyNil(err) {
			return nil, t.failed(ctx, what, err)
		}
	}
	return answers, nil
}

// failed describes an error of the client or the server.
func (t *Tier) failed(ctx context.Context, what string, err error) error {
	cause := ctx.Err()
	if end, ok := ctx.Deadline(); ok && cause == nil && !time.Now().Before(end) {
		cause = context.DeadlineExceeded // the connection's clock was faster than that of ctx
	}
	code, rest, _ := strings.Cut(err.Error(), " ")
	if _, ok := valkey.IsValkeyErr(err); !ok {
		code = ""
	} else if code == "ACL" && strings.HasPrefix(rest, "failure in script") {
		code = "NOPERM"
	}
	switch {
	case t.closed.Load():
		return tier.ErrClosed
	case cause != nil:
	case code == "OOM":
		cause = tier.ErrNoSpace
	case code == "NOPERM", code == "READONLY", code == "MISCONF", code == "NOREPLICAS": // it may be read
		cause = fs.ErrPermission
	case code == "MOVED", code == "CLUSTERDOWN":
		return fmt.Errorf("%s in %s, which is a part of a Cluster, where kvtier keeps no tier: %v", what, t.where, err)
	default:
		return fmt.Errorf("%s in %s: %s", what, t.where, advise(code, err))
	}
	return fmt.Errorf("%s in %s: %v (%w)", what, t.where, err, cause)
}

// advise says of an error of the server or the client what its reader can do.
func advise(code string, err error) string {
	var network net.Error
	var record tls.RecordHeaderError
	lost := errors.Is(err, io.EOF) || errors.Is(err, syscall.ECONNRESET)
	other := lost || errors.As(err, &record) || errors.Is(err, errProtocol)
	switch {
	case code == "WRONGPASS", code == "NOAUTH":
		return fmt.Sprintf("it refuses the user or the password of the address: %v", err)
	case code == "" && other:
		return fmt.Sprintf("no Valkey or Redis answers there, look at the port and at TLS: %v", err)
	case errors.As(err, &network):
		return fmt.Sprintf("no connection, look at host and port and whether it runs: %v", err)
	}
	return err.Error()
}

// Close closes all connections. Close waits for nothing.
func (t *Tier) Close() error {
	if !t.closed.Swap(true) {
		t.client.Close()
	}
	return nil
}
