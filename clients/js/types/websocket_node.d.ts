import type { Socket } from 'node:net';
export declare class NodeWebSocket {
    /** @type {((event: any) => void) | null} */
    onopen: ((event: any) => void) | null;
    /** @type {((event: any) => void) | null} */
    onmessage: ((event: any) => void) | null;
    /** @type {((event: any) => void) | null} */
    onclose: ((event: any) => void) | null;
    /** @type {((event: any) => void) | null} */
    onerror: ((event: any) => void) | null;
    /** @type {Buffer} */
    _unread: Buffer;
    /** @type {Buffer[]} */
    _parts: Buffer[];
    _partBytes: number;
    _over: boolean;
    _closing: boolean;
    /** @type {Socket | undefined} */
    _socket: Socket | undefined;
    _request: import("http").ClientRequest | undefined;
    /**
     * @param {string} url
     * @param {string[]} protocols
     */
    constructor(url: string, protocols: string[]);
    /**
     * @param {URL} url
     * @param {string[]} protocols
     */
    _connect(url: URL, protocols: string[]): void;
    /**
     * @param {Socket} socket
     * @param {Buffer} head
     */
    _opened(socket: Socket, head: Buffer): void;
    /** @param {number} [_] the close code; it is always sent as 1000 */
    close(_?: number): void;
    _sendClose(): void;
    /** @param {Error} [error] */
    _end(error?: Error): void;
    /** @param {Buffer} data */
    _feed(data: Buffer): void;
    /** @param {{final: boolean, opcode: number, payload: Buffer}} frame */
    _take({ final, opcode, payload }: {
        final: boolean;
        opcode: number;
        payload: Buffer;
    }): void;
    /**
     * Send a masked frame; its payload must be shorter than 126 bytes.
     * @param {number} opcode
     * @param {Buffer} payload
     */
    _send(opcode: number, payload: Buffer): void;
}
