/** A minimal WebSocket client for versions of Node without one: it receives text and sends only control frames. */
import { createHash, randomBytes } from 'node:crypto'
import { request as httpRequest } from 'node:http'
import { request as httpsRequest } from 'node:https'

/** @import { Socket } from 'node:net' */

const GUID = '258EAFA5-E914-47DA-95CA-C5AB0DC85B11'
const CONTINUATION = 0
const TEXT = 1
const CLOSE = 8
const PING = 9
const PONG = 10
const MESSAGE_BYTES_MAX = 16 << 20
const KEEPALIVE_MS = 15_000
const CLOSE_TIMEOUT_MS = 2_000
const OPEN_MS_MAX = 30_000

export class NodeWebSocket {
  /**
   * @param {string} url
   * @param {string[]} protocols
   */
  constructor(url, protocols) {
    /** @type {((event: any) => void) | null} */
    this.onopen = null
    /** @type {((event: any) => void) | null} */
    this.onmessage = null
    /** @type {((event: any) => void) | null} */
    this.onclose = null
    /** @type {((event: any) => void) | null} */
    this.onerror = null
    /** @type {Buffer} */
    this._unread = Buffer.alloc(0)
    /** @type {Buffer[]} */
    this._parts = []
    this._partBytes = 0
    this._over = false
    this._closing = false
    /** @type {Socket | undefined} */
    this._socket = undefined
    this._connect(new URL(url.replace(/^ws/, 'http')), protocols)
  }

  /**
   * @param {URL} url
   * @param {string[]} protocols
   */
  _connect(url, protocols) {
    const key = randomBytes(16).toString('base64')
    this._request = (url.protocol === 'https:' ? httpsRequest : httpRequest)(url, {
      headers: {
        connection: 'Upgrade',
        upgrade: 'websocket',
        'sec-websocket-key': key,
        'sec-websocket-version': '13',
        'sec-websocket-protocol': protocols.join(', '),
      },
      timeout: OPEN_MS_MAX,
    })
    this._request.on('timeout', () => this._request?.destroy())
    this._request.on('error', (error) => this._end(error))
    this._request.on('response', (response) => {
      response.resume()
      this._end(new Error(`refused with ${response.statusCode}`))
    })
    this._request.on('upgrade', (response, socket, head) => {
      const accept = createHash('sha1').update(key + GUID).digest('base64')
      if (response.headers['sec-websocket-accept'] !== accept) {
        socket.destroy()
        this._end(new Error('not a WebSocket'))
        return
      }
      this._opened(/** @type {Socket} */ (socket), head)
    })
    this._request.end()
  }

  /**
   * @param {Socket} socket
   * @param {Buffer} head
   */
  _opened(socket, head) {
    this._socket = socket
    socket.setTimeout(0)
    socket.setNoDelay(true)
    socket.setKeepAlive(true, KEEPALIVE_MS)
    socket.on('data', (data) => this._feed(data))
    socket.on('error', (error) => this._end(error))
    socket.on('close', () => this._end())
    if (this._closing) this._sendClose()
    this.onopen?.({})
    if (head.length > 0) this._feed(head)
  }

  /** @param {number} [_] the close code; it is always sent as 1000 */
  close(_) {
    if (this._closing) return
    this._closing = true
    if (this._socket) this._sendClose()
    else this._request?.destroy()
  }

  _sendClose() {
    this._send(CLOSE, Buffer.from([0x03, 0xe8]))
    const timer = setTimeout(() => this._socket?.destroy(), CLOSE_TIMEOUT_MS)
    this._socket?.on('close', () => clearTimeout(timer))
  }

  /** @param {Error} [error] */
  _end(error) {
    if (this._over) return
    this._over = true
    this._socket?.destroy()
    if (error) this.onerror?.({ error })
    this.onclose?.({})
  }

  /** @param {Buffer} data */
  _feed(data) {
    this._unread = this._unread.length === 0 ? data : Buffer.concat([this._unread, data])
    while (!this._over) {
      const frame = readFrame(this._unread)
      if (frame === undefined) return
      if (frame === null) {
        this._end(new Error('the server sent an invalid WebSocket frame'))
        return
      }
      this._unread = this._unread.subarray(frame.end)
      this._take(frame)
    }
  }

  /** @param {{final: boolean, opcode: number, payload: Buffer}} frame */
  _take({ final, opcode, payload }) {
    if (opcode === PING) this._send(PONG, payload)
    else if (opcode === CLOSE) {
      if (!this._closing) this._send(CLOSE, payload.subarray(0, 2))
      this._closing = true
      this._socket?.end()
      this._end()
    } else if (opcode === TEXT || opcode === CONTINUATION) {
      this._parts.push(payload)
      this._partBytes += payload.length
      if (this._partBytes > MESSAGE_BYTES_MAX) this._end(new Error('a message is too large'))
      else if (final) {
        const data = Buffer.concat(this._parts).toString()
        this._parts = []
        this._partBytes = 0
        if (!this._closing) this.onmessage?.({ data })
      }
    }
  }

  /**
   * Send a masked frame; its payload must be shorter than 126 bytes.
   * @param {number} opcode
   * @param {Buffer} payload
   */
  _send(opcode, payload) {
    const mask = randomBytes(4)
    const body = Buffer.from(payload.map((byte, index) => byte ^ mask[index % 4]))
    this._socket?.write(Buffer.concat([Buffer.from([0x80 | opcode, 0x80 | body.length]), mask, body]))
  }
}

/**
 * Return the frame at the start of the data: undefined if it is incomplete, null if it is invalid.
 * @param {Buffer} data
 */
function readFrame(data) {
  if (data.length < 2) return undefined
  const opcode = data[0] & 0x0f
  const length = data[1] & 0x7f
  if (data[0] & 0x70 || data[1] & 0x80 || (opcode >= CLOSE && length > 125)) return null
  const start = length === 126 ? 4 : length === 127 ? 10 : 2
  if (data.length < start) return undefined
  const size = length === 126 ? data.readUInt16BE(2) : length === 127 ? Number(data.readBigUInt64BE(2)) : length
  if (size > MESSAGE_BYTES_MAX) return null
  const end = start + size
  if (data.length < end) return undefined
  return { final: (data[0] & 0x80) !== 0, opcode, payload: data.subarray(start, end), end }
}
